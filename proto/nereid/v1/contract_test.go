package nereidv1_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/proto/internal/listing"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func contracts() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		nereidv1.File_nereid_v1_work_proto,
		nereidv1.File_nereid_v1_tensor_proto,
		nereidv1.File_nereid_v1_descriptor_proto,
		nereidv1.File_nereid_v1_batch_proto,
		nereidv1.File_nereid_v1_schedule_proto,
		nereidv1.File_nereid_v1_exchange_proto,
		nereidv1.File_nereid_v1_state_proto,
		nereidv1.File_nereid_v1_setting_proto,
		nereidv1.File_nereid_v1_control_proto,
		nereidv1.File_nereid_v1_recording_proto,
		nereidv1.File_nereid_v1_region_proto,
	}
}

// Lines may be added. A line of a release that changes or goes breaks a
// cluster that runs it beside its neighbor.
func TestContractsAreAsListed(t *testing.T) {
	compareGolden(t, "contracts.txt", strings.Join(listing.Of(contracts()...), "\n")+"\n")
}

func TestValuesStateTheirSchemaFirst(t *testing.T) {
	count := 0
	for _, message := range messages() {
		if !strings.HasSuffix(string(message.Name()), "Value") {
			continue
		}
		count++
		f := message.Fields().ByNumber(1)
		if f == nil || f.Name() != "schema" || f.Kind() != protoreflect.Uint32Kind {
			t.Errorf("%s: field 1 is %v, want uint32 schema", message.FullName(), f)
		}
	}
	if want := len(values()) - 1; count != want { // models have two golden files
		t.Errorf("%d values are defined, %d have golden files", count, want)
	}
}

// A region's stream is one call with several requests: it ends with what it is about.
func TestStreamsBeginWithAHello(t *testing.T) {
	for _, file := range contracts() {
		if file == nereidv1.File_nereid_v1_region_proto {
			continue
		}
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); m.IsStreamingClient() && m.IsStreamingServer() {
					checkEnvelope(t, m.Input())
					checkEnvelope(t, m.Output())
				}
			}
		}
	}
}

// checkEnvelope fails unless the message holds messages of one kind alone,
// which are one oneof each whose first member is a hello that states the
// protocol.
func checkEnvelope(t *testing.T, envelope protoreflect.MessageDescriptor) {
	t.Helper()
	messages := envelope.Fields().ByNumber(1)
	if envelope.Fields().Len() != 1 || messages == nil || !messages.IsList() || messages.Message() == nil {
		t.Errorf("%s is not one list of messages", envelope.Name())
		return
	}
	checkMessage(t, messages.Message())
}

func checkMessage(t *testing.T, message protoreflect.MessageDescriptor) {
	t.Helper()
	if message.Oneofs().Len() != 1 || message.Oneofs().Get(0).Fields().Len() != message.Fields().Len() {
		t.Errorf("%s is not one oneof", message.Name())
		return
	}
	hello := message.Fields().ByNumber(1)
	if hello == nil || hello.Name() != "hello" || hello.Message() == nil {
		t.Errorf("%s: field 1 is %v, want a hello", message.Name(), hello)
		return
	}
	protocol := hello.Message().Fields().ByNumber(1)
	if protocol == nil || protocol.Name() != "protocol" || protocol.Kind() != protoreflect.Uint32Kind {
		t.Errorf("%s: field 1 is %v, want uint32 protocol", hello.Message().Name(), protocol)
	}
}

func TestDatatypesHaveTheNumbersOfTheModelConfiguration(t *testing.T) {
	if len(nereidv1.Datatype_name) != len(inference.DataType_name) {
		t.Errorf("%d datatypes, the model configuration has %d", len(nereidv1.Datatype_name), len(inference.DataType_name))
	}
	for number, name := range inference.DataType_name {
		want := "DATATYPE_" + strings.TrimPrefix(name, "TYPE_")
		if name == "TYPE_STRING" {
			want = "DATATYPE_BYTES"
		}
		if got := nereidv1.Datatype_name[number]; got != want {
			t.Errorf("datatype %d is %q, want %q", number, got, want)
		}
	}
}

func messages() []protoreflect.MessageDescriptor {
	var list []protoreflect.MessageDescriptor
	for _, file := range contracts() {
		for i := range file.Messages().Len() {
			list = append(list, file.Messages().Get(i))
		}
	}
	return list
}
