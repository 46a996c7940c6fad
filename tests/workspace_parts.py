"""Settings of the tests' workspaces that do not care which network learns: from scratch, small images, milliseconds a step."""

FROM_SCRATCH = {"backbone": "reduced_resnet18"}
SMALL = {**FROM_SCRATCH, "image_size": 8}
