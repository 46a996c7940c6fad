"""The Gradio app comes here: label what the camera sees, watch it learn, manage classes and memory."""
