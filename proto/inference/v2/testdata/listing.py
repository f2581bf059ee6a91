"""Prints the definitions inside Triton's Python client as tritonclient.txt.

The other half of internal/listing: the same lines, made from the descriptors
of the package tritonclient[grpc], so that what Nereid speaks is compared with
what its clients speak and not with itself.
"""

from importlib.metadata import version

from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

KINDS = {getattr(FieldDescriptor, n): n[5:].lower() for n in dir(FieldDescriptor) if n.startswith("TYPE_")}


def is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def type_of(field):
    if is_map(field):
        entry = field.message_type.fields_by_name
        return f"map<{type_of(entry['key'])},{type_of(entry['value'])}>"
    named = field.message_type or field.enum_type
    return named.full_name if named else KINDS[field.type]


def label(field):
    if is_map(field):
        return "map"
    if field.is_repeated:
        return "repeated"
    # Messages and members of a real oneof have presence without the keyword.
    if field.has_presence and not field.message_type and (
        not field.containing_oneof or field.containing_oneof.name == "_" + field.name
    ):
        return "optional"
    return "singular"


def field_line(field):
    oneof = field.containing_oneof
    name = oneof.name if oneof and label(field) != "optional" else "-"
    return (
        f"field {field.containing_type.full_name} {field.name} {field.number}"
        f" {type_of(field)} {label(field)} {name} {field.json_name}"
    )


def enum_block(enum):
    return "\n".join(f"enum {enum.full_name} {v.name} {v.number}" for v in enum.values)


def message_blocks(message):
    if message.GetOptions().map_entry:
        return
    yield "\n".join(["message " + message.full_name] + [field_line(f) for f in message.fields])
    for enum in message.enum_types:
        yield enum_block(enum)
    for nested in message.nested_types:
        yield from message_blocks(nested)


def service_block(service):
    mode = {False: "unary", True: "stream"}
    return "\n".join(
        f"method {service.full_name} {m.name} {m.input_type.full_name} {m.output_type.full_name}"
        f" {mode[m.client_streaming]} {mode[m.server_streaming]}"
        for m in service.methods
    )


def main():
    blocks = []
    for module in (service_pb2, model_config_pb2):
        file = module.DESCRIPTOR
        blocks += [enum_block(e) for e in file.enum_types_by_name.values()]
        blocks += [b for m in file.message_types_by_name.values() for b in message_blocks(m)]
        blocks += [service_block(s) for s in file.services_by_name.values()]
    print(f"# Definitions in tritonclient {version('tritonclient')}, made by listing.py.")
    print("\n".join(sorted(blocks)))


if __name__ == "__main__":
    main()
