"""The kubelet's two gRPC interfaces; `*_pb2*` are generated from the .proto files by `generate`."""
