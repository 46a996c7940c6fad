"""Publishing a learner as ONNX, and the device runtime that needs neither torch nor edge_hpcr, come here."""
