"""Publishing a learner as ONNX (publish), and the device runtime, which needs no torch (device)."""
