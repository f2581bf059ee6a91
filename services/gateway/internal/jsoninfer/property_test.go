package jsoninfer_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

// Whatever a tensor holds, what is written of it reads back as the same bytes.
func TestDataSurvivesTheRoundTrip(t *testing.T) {
	var inJSON []tensor.Datatype
	for _, d := range tensor.Datatypes() {
		if d != tensor.FP16 && d != tensor.BF16 {
			inJSON = append(inJSON, d)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom(inJSON).Draw(t, "datatype")
		n := rapid.IntRange(0, 20).Draw(t, "elements")
		data := drawData(t, d, n)
		out := infer.Tensor{Name: "A", Datatype: d, Shape: tensor.Shape{int64(n)}, Data: tensor.InHeap(data)}
		text, err := jsoninfer.AppendData(nil, &out, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := decode(fmt.Sprintf(`{"inputs":[{"name":"A","datatype":"%s","shape":[%d],"data":[%s]}]}`, d, n, text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, _ := r.Inputs[0].Data.Bytes()
		if string(got) != string(data) {
			t.Fatalf("%s reads back as %x, was %x", text, got, data)
		}
	})
}

func drawData(t *rapid.T, d tensor.Datatype, n int) []byte {
	data := []byte{}
	for range n {
		switch d {
		case tensor.Bytes:
			data = tensor.AppendBytes(data, rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "string"))
		case tensor.Bool:
			data = append(data, byte(rapid.IntRange(0, 1).Draw(t, "bool")))
		case tensor.FP32:
			f := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
			if f != f {
				f = float32(math.NaN()) // JSON has one
			}
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(f))
		case tensor.FP64:
			f := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
			if f != f {
				f = math.NaN()
			}
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(f))
		default:
			data = append(data, rapid.SliceOfN(rapid.Byte(), d.Size(), d.Size()).Draw(t, "int")...)
		}
	}
	return data
}

// checkFloat compares the reading of text with the library's.
func checkFloat(t interface{ Errorf(string, ...any) }, text string) {
	want64, err := strconv.ParseFloat(text, 64)
	want32, _ := strconv.ParseFloat(text, 32)
	for _, c := range []struct {
		datatype string
		want     string
	}{
		{"FP64", le(want64)},
		{"FP32", le(float32(want32))},
	} {
		r, _, refused := decode(`{"inputs":[{"name":"A","datatype":"` + c.datatype + `","shape":[1],"data":[` + text + `]}]}`)
		if (refused != nil) != (err != nil) {
			t.Errorf("%s as %s: %v, strconv: %v", text, c.datatype, refused, err)
			continue
		}
		if got, _ := r.Inputs[0].Data.Bytes(); err == nil && string(got) != c.want {
			t.Errorf("%s as %s: got %x, want %x", text, c.datatype, got, c.want)
		}
	}
}

func TestFloatsAreRoundedAsTheLibraryRounds(t *testing.T) {
	for _, text := range []string{
		"16777217", "16777217.0000000001", "16777216.9999999999", // between two float32s
		"9007199254740993", "9007199254740992.5", "1e22", "1e23", "8.5e-23",
		"0.000000000000000000000000000000000000011754943508222875", "7.006492321624085e-46", "7.006492321624086e-46",
		"3.4028235677973366e38", "3.4028235677973365e38", "179769313486231580793e289", "1e-400", "0e999999999999",
		"12345678", "123456789", "1234567812345678", "0.12345678", "12345678.12345678e-8",
	} {
		checkFloat(t, text)
		checkFloat(t, "-"+text)
	}
	rapid.Check(t, func(t *rapid.T) {
		checkFloat(t, drawNumber(t))
	})
}

// drawNumber draws numbers as people and programs write them, many of them
// next to the middle between two float32s.
func drawNumber(t *rapid.T) string {
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return strconv.FormatFloat(rapid.Float64().Draw(t, "float"), 'g', rapid.IntRange(-1, 24).Draw(t, "digits"), 64)
	case 1:
		f := math.Abs(float64(rapid.Float32Range(1e-20, 1e20).Draw(t, "float")))
		middle := math.Float64frombits(math.Float64bits(f) + 1<<28 + uint64(rapid.IntRange(-6, 6).Draw(t, "off")))
		return strconv.FormatFloat(middle, 'f', rapid.IntRange(0, 30).Draw(t, "digits"), 64)
	case 2:
		return rapid.StringMatching(`-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?`).Draw(t, "text")
	}
	return rapid.StringMatching(`-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?`).Draw(t, "text")
}

func FuzzFloat(f *testing.F) {
	for _, text := range []string{"1", "-0.5e-7", "16777217", "123456789012345678901234567890", "1e400"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if json.Valid([]byte(text)) && strings.Trim(text, "-0123456789.eE+") == "" {
			checkFloat(t, text)
		}
	})
}

// Any bytes either make a request or an error with a reason; what makes one
// is JSON but for the words NaN and Infinity.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		`{"id":"x","inputs":[{"name":"A","datatype":"FP32","shape":[2],"data":[1,[2e3]]}],"outputs":[{"name":"B","parameters":{"binary_data":true}}]}`,
		`{"inputs":[{"data":["\ud83d\ude00"],"name":"A","datatype":"BYTES","shape":[1]}],"parameters":{"a":1.5,"b":null}}`,
		`{"inputs":[{"name":"A","datatype":"BOOL","shape":[0],"parameters":{"binary_data_size":0}}]}`,
		`{"inputs":[{"name":"A","datatype":"FP32","shape":[2],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":1}}],"outputs":[{"name":"B","parameters":{"shared_memory_region":"r"}}]}`,
		`[[[[`, `{"a`, `{"inputs":[]}x`, "{\"inputs\":[],\"\\u12",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		pool := tensor.NewPool(0)
		d := jsoninfer.Decoder{Pool: pool, MaxTensor: 1 << 20}
		var r infer.Request
		var e jsoninfer.Envelope
		err := d.Decode(body, &modelconfig.Config{}, &r, &e)
		text := string(body)
		if err == nil && !json.Valid(body) && !strings.Contains(text, "NaN") && !strings.Contains(text, "Inf") {
			t.Errorf("%q is taken and is no JSON", body)
		}
		if err != nil && !refusalOf(err).Reason.Known() {
			t.Errorf("%q: error without a reason: %v", body, err)
		}
		r.Release()
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%q: %d bytes are not given back", body, n)
		}
	})
}
