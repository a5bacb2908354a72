"""A client of gRPC for the tests: Debian's grpcio, and messages made from the descriptors that the server itself gives."""
import contextlib
import sys
import unittest

DEBIAN = "/usr/lib/python3/dist-packages"  # where its packages are, for another build of the same Python
try:
    import grpc
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory
except ImportError:
    sys.path.append(DEBIAN)
    try:
        import grpc
        from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory
    except ImportError:
        grpc = None

from model_support import SANITIZED
from pretrain_support import fields

needs_grpcio = unittest.skipUnless(grpc, "there is no python3-grpcio, or none for this Python")
PATIENCE = 300 if SANITIZED else 60


# ---- the wire, as far as reflection needs it before there are messages

def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, content):
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


class Client:
    """A channel, and every method of the services that reflection tells of: client.call("Generate", text=...)."""

    def __init__(self, address, key=None, root=None, options=()):
        options = [("grpc.enable_http_proxy", 0), *options]
        self.channel = (grpc.secure_channel(address, grpc.ssl_channel_credentials(root), options) if root
                        else grpc.insecure_channel(address, options))
        self.metadata = [("authorization", f"Bearer {key}")] if key else []
        self.pool, self.files = None, {}

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- bytes

    def raw(self, path, body, metadata=(), timeout=PATIENCE, **more):
        """One message of bytes there, one back."""
        return self.channel.unary_unary(path)(body, metadata=[*self.metadata, *metadata], timeout=timeout, **more)

    def reflect(self, *requests, version="v1"):
        """Answers of reflection, as (number, content) of what each tells."""
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        answers = self.channel.stream_stream(path)(iter(requests), metadata=self.metadata, timeout=PATIENCE)
        return [next((number, value) for number, value in fields(answer) if number >= 4) for answer in answers]

    def file_with(self, symbol, version="v1"):
        """The FileDescriptorProto in which a symbol stands."""
        (number, content), = self.reflect(field(4, symbol.encode()), version=version)
        assert number == 4, content
        return descriptor_pb2.FileDescriptorProto.FromString(fields(content)[0][1])

    # ---- messages

    def learn(self):
        if self.pool:
            return
        self.pool = descriptor_pool.DescriptorPool()
        for service in ("cambium.v1.Cambium", "grpc.health.v1.Health"):
            file = self.file_with(service)
            self.pool.Add(file)
            for entry in file.service:
                for method in entry.method:
                    self.files[method.name] = (f"/{file.package}.{entry.name}/{method.name}", method)

    def type(self, name):
        return message_factory.MessageFactory(self.pool).GetPrototype(self.pool.FindMessageTypeByName(name.lstrip(".")))

    def message(self, name, /, **values):
        self.learn()
        return self.type(f"cambium.v1.{name}")(**values)

    def call(self, name, /, request=None, metadata=(), timeout=PATIENCE, compression=None, **values):
        """The answer of a method, or of one that streams, a call to iterate."""
        self.learn()
        path, method = self.files[name]
        request = request if request is not None else self.type(method.input_type)(**values)
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        ask = kind(path, request_serializer=lambda message: message.SerializeToString(),
                   response_deserializer=self.type(method.output_type).FromString)
        return ask(request, metadata=[*self.metadata, *metadata], timeout=timeout, compression=compression)


# ---- details of a status

# The messages of google.rpc that clients know: name, (number, name, type, is repeated) of each field.
DETAILS = {
    "Status": ((1, "code", "int32", False), (2, "message", "string", False), (3, "details", ".google.protobuf.Any", True)),
    "ErrorInfo": ((1, "reason", "string", False), (2, "domain", "string", False), (3, "metadata", ".google.rpc.Pair", True)),
    "Pair": ((1, "key", "string", False), (2, "value", "string", False)),  # an entry of a map is no more on the wire
    "RetryInfo": ((1, "retry_delay", ".google.protobuf.Duration", False),),
    "BadRequest": ((1, "field_violations", ".google.rpc.Violation", True),),
    "Violation": ((1, "field", "string", False), (2, "description", "string", False)),
}


def detail_types():
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="details.proto", package="google.rpc", syntax="proto3", dependency=[
        "google/protobuf/any.proto", "google/protobuf/duration.proto"])
    plain = {"int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32, "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING}
    for name, rows in DETAILS.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind, is_repeated in rows:
            entry = message.field.add(name=field_name, number=number, label=3 if is_repeated else 1)
            if kind in plain:
                entry.type = plain[kind]
            else:
                entry.type, entry.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, kind
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return {name: factory.GetPrototype(pool.FindMessageTypeByName(f"google.rpc.{name}")) for name in DETAILS}


def details_of(error):
    """The details of a call's error besides its status: ErrorInfo, RetryInfo and BadRequest, by name, as far as they
    exist. The inner status equals the outer one, as grpcio-status requires."""
    types = detail_types()
    status = types["Status"].FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details()), status
    found = {}
    for detail in status.details:
        host, _, name = detail.type_url.rpartition("/google.rpc.")
        assert host == "type.googleapis.com" and name not in found, detail.type_url
        found[name] = types[name].FromString(detail.value)
    return found


@contextlib.contextmanager
def fails(test, status, part=""):
    """The block ends with this status of gRPC, whose message has the part, and which tells programs the same. A deadline
    may be the client's own end."""
    with test.assertRaises(grpc.RpcError) as caught:
        yield caught
    error = caught.exception
    test.assertEqual((error.code().name, part in error.details()), (status, True), error.details())
    if status != "DEADLINE_EXCEEDED":
        details_of(error)
