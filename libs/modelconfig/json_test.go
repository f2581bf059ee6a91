package modelconfig_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// TestJSONGolden writes testdata/json/NAME.pbtxt, as it is, and compares with
// NAME.json.
func TestJSONGolden(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "json", "*.pbtxt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, path := range paths {
		t.Run(modelName(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c := new(inference.ModelConfig)
			if err := prototext.Unmarshal(text, c); err != nil {
				t.Fatal(err)
			}
			wire := modelconfig.JSON(c)
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, wire, "", "  "); err != nil {
				t.Fatalf("%v in %s", err, wire)
			}
			golden(t, strings.TrimSuffix(path, ".pbtxt")+".json", pretty.String()+"\n")
			readsBack(t, c, wire)
		})
	}
}

// readsBack checks that protobuf's own parser reads the JSON as c, and with
// that as clients do.
func readsBack(t *testing.T, c *inference.ModelConfig, wire []byte) {
	t.Helper()
	got := new(inference.ModelConfig)
	if err := protojson.Unmarshal(wire, got); err != nil {
		t.Fatalf("%v in %s", err, wire)
	}
	if diff := cmp.Diff(c, got, protocmp.Transform()); diff != "" {
		t.Errorf("the JSON means another configuration (-want +got):\n%s", diff)
	}
}

// TestJSONIsTritons compares with what Triton 2.51 answered for the models
// testdata/triton/NAME.pbtxt.
func TestJSONIsTritons(t *testing.T) {
	for _, name := range []string{"rich", "seq"} {
		text, err := os.ReadFile(filepath.Join("testdata", "triton", name+".pbtxt"))
		if err != nil {
			t.Fatal(err)
		}
		c := new(inference.ModelConfig)
		if err := prototext.Unmarshal(text, c); err != nil {
			t.Fatal(err)
		}
		modelconfig.Normalize(c, modelconfig.Directory{Name: name})
		want, err := os.ReadFile(filepath.Join("testdata", "triton", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(modelconfig.JSON(c))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestJSONWritesEveryField fills in each field that the schema has.
func TestJSONWritesEveryField(t *testing.T) {
	c := new(inference.ModelConfig)
	fill(c.ProtoReflect(), 0)
	readsBack(t, c, modelconfig.JSON(c))
}

// fill sets all fields of m, of several levels of messages, to values that
// are not the default. Of a oneof the last member stays.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(sample(f.MapKey(), nil, depth).MapKey(), sample(f.MapValue(), m.NewField(f).Map().NewValue, depth))
		case f.IsList():
			list := m.Mutable(f).List()
			list.Append(sample(f, list.NewElement, depth))
			list.Append(sample(f, list.NewElement, depth))
		default:
			m.Set(f, sample(f, func() protoreflect.Value { return m.NewField(f) }, depth))
		}
	}
}

func sample(f protoreflect.FieldDescriptor, empty func() protoreflect.Value, depth int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.MessageKind:
		v := empty()
		if depth < 8 {
			fill(v.Message(), depth+1)
		}
		return v
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(math.MinInt32)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(math.MinInt64)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(math.MaxUint32)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(math.MaxUint64)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(0.1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1e-300)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 0xff, '"'})
	}
	return protoreflect.ValueOfString("a \"quoted\" <text>\n\u2028")
}

func TestJSONOfNumbersThatAreNone(t *testing.T) {
	c := &inference.ModelConfig{ModelMetrics: &inference.ModelMetrics{MetricControl: []*inference.ModelMetrics_MetricControl{{
		MetricOptions: &inference.ModelMetrics_MetricControl_HistogramOptions_{
			HistogramOptions: &inference.ModelMetrics_MetricControl_HistogramOptions{
				Buckets: []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e21},
			},
		},
	}}}}
	wire := modelconfig.JSON(c)
	if want := `"buckets":["NaN","Infinity","-Infinity",1e+21]`; !bytes.Contains(wire, []byte(want)) {
		t.Errorf("%s has no %s", wire, want)
	}
	got := new(inference.ModelConfig)
	if err := protojson.Unmarshal(wire, got); err != nil || !proto.Equal(c, got) {
		t.Errorf("reads back as %v, %v", got, err)
	}
}
