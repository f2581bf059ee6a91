package values

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func want(d tensor.Datatype, shape ...int64) client.Description {
	return client.Description{Name: "x", Datatype: d, Shape: shape}
}

// file writes a file whose name says how to read it.
func file(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shown is a tensor as a person sees it.
func shown(t *testing.T, v client.Tensor) string {
	t.Helper()
	elements, err := Elements(v, -1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(elements)
	if err != nil {
		t.Fatal(err)
	}
	return v.Shape.String() + string(text)
}

// npy is a file of numpy.save.
func npy(descr, order, shape, data string) []byte {
	header := "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': (" + shape + "), }\n"
	return append([]byte(npyMagic+"\x01\x00"+string([]byte{byte(len(header)), 0})+header), data...)
}

func TestJSONTakesTheModelsDatatypeAndShape(t *testing.T) {
	tests := map[string]struct {
		want client.Description
		text string
		out  string
	}{
		"its own shape":       {want(tensor.Int32, -1, 2), "[[1,2],[-3,4]]", "[2,2][1,2,-3,4]"},
		"a row of a batch":    {want(tensor.Int8, -1, 2), "[1,-2]", "[1,2][1,-2]"},
		"a scalar":            {want(tensor.Uint64, -1, 1), "18446744073709551615", "[1,1][18446744073709551615]"},
		"a flat list":         {want(tensor.FP32, -1, 2, 2), "[1,2,3,4,5,6,7,8]", "[2,2,2][1,2,3,4,5,6,7,8]"},
		"true and false":      {want(tensor.Bool, 2), "[true,false]", "[2][true,false]"},
		"strings":             {want(tensor.Bytes, -1, -1), `["a","ü"]`, `[1,2]["a","ü"]`},
		"text as bytes":       {want(tensor.Uint8, -1, -1), `"ab"`, "[1,2][97,98]"},
		"half precision":      {want(tensor.FP16, 5), "[1,-2.5,65504,6e-8,1e9]", `[5][1,-2.5,65504,5.9604645e-08,"Infinity"]`},
		"brain precision":     {want(tensor.BF16, 2), "[1,-0.5]", "[2][1,-0.5]"},
		"doubles":             {want(tensor.FP64, 1), "0.1", "[1][0.1]"},
		"an empty list":       {want(tensor.Int32, -1), "[]", "[0][]"},
		"a whole scalar":      {want(tensor.Int16), "7", "[][7]"},
		"an added batch of 1": {want(tensor.Int32, -1, -1, 2), "[[1,2],[3,4]]", "[1,2,2][1,2,3,4]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Read(tt.want, tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.out, shown(t, got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatIsNoValueIsNamed(t *testing.T) {
	one := want(tensor.Int32, -1)
	tests := map[string]struct {
		want client.Description
		text string
		out  string
	}{
		"neither file nor JSON": {one, "no.npy", "no such file"},
		"too large":             {want(tensor.Int8, -1), "[128]", "128 is no INT8"},
		"a fraction":            {one, "[1.5]", "1.5 is no INT32"},
		"the wrong kind":        {one, `["a"]`, `"a" is no INT32`},
		"null":                  {one, `[null]`, "null is no INT32"},
		"a number for a string": {want(tensor.Bytes, -1), "[1]", "1 is no BYTES"},
		"an object":             {one, `{"a":1}`, "is no INT32"},
		"ragged lists":          {one, "[[1,2],[3]]", "2 and 1 elements"},
		"a list for an element": {one, "[1,[2]]", "a list stands"},
		"an element for a list": {one, "[[2],1]", "an element stands"},
		"the wrong shape":       {want(tensor.Int32, 3), "[1,2]", "[2], and the model takes [3]"},
		"an open shape":         {want(tensor.Int32, -1, 2, -1), "[1,2,3]", "the model takes [-1,2,-1]"},
		"too deep":              {one, strings.Repeat("[", 40) + strings.Repeat("]", 40), "deeper"},
		"an unknown ending":     {one, file(t, "x.jpeg", nil), ".png"},
		"text for numbers":      {one, file(t, "x.txt", nil), "for BYTES"},
		"half an element":       {one, file(t, "x.bin", []byte{1, 2, 3}), "3 bytes"},
		"a foreign file":        {one, file(t, "x.npy", []byte("PK")), "numpy.save"},
		"another dtype":         {one, file(t, "x.npy", npy("<f4", "False", "1,", "aaaa")), "<f4, and the model takes INT32"},
		"Fortran's order":       {one, file(t, "x.npy", npy("<i4", "True", "1,", "aaaa")), "ascontiguousarray"},
		"an array cut off":      {one, file(t, "x.npy", npy("<i4", "False", "2,", "aaaa")), "takes 8"},
		"a huge array":          {one, file(t, "x.npy", npy("<i4", "False", "99999999999, 99999999999", "")), "too large"},
		"a damaged image":       {want(tensor.FP32, 1, 2, 2), file(t, "x.png", []byte("PNG")), "read the image"},
		"no image's shape":      {want(tensor.FP32, -1, 10), file(t, "x.png", picture(1, 1)), "want height and width"},
		"an image of truths":    {want(tensor.Bool, 2, 2), file(t, "x.png", picture(1, 1)), "no form as BOOL"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if v, err := Read(tt.want, tt.text); err == nil || !strings.Contains(err.Error(), tt.out) {
				t.Errorf("%v, %v; want %q", v, err, tt.out)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	tests := map[string]struct {
		want client.Description
		path string
		out  string
	}{
		"JSON":             {want(tensor.Int32, -1), file(t, "x.json", []byte("[1, 2]\n")), "[2][1,2]"},
		"lines":            {want(tensor.Bytes, -1, -1), file(t, "x.txt", []byte("a b\r\n\nc")), `[1,3]["a b","","c"]`},
		"text":             {want(tensor.Uint8, -1, -1), file(t, "x.txt", []byte("a\n")), "[1,2][97,10]"},
		"raw bytes":        {want(tensor.Int16, -1), file(t, "x.bin", []byte{1, 0, 255, 255}), "[2][1,-1]"},
		"raw strings":      {want(tensor.Bytes, -1), file(t, "x.bin", tensor.AppendBytes(nil, "a")), `[1]["a"]`},
		"an array":         {want(tensor.Int16, -1, 2), file(t, "x.npy", npy("<i2", "False", "1, 2", "\x01\x00\x02\x00")), "[1,2][1,2]"},
		"an array's row":   {want(tensor.Uint8, -1, 2), file(t, "x.NPY", npy("|u1", "False", "2,", "\x01\x02")), "[1,2][1,2]"},
		"an array's words": {want(tensor.Bytes, -1), file(t, "x.npy", npy("|S3", "False", "2,", "abcd\x00\x00")), `[2]["abc","d"]`},
		"a scalar array":   {want(tensor.Uint8), file(t, "x.npy", npy("|u1", "False", "", "\x05")), "[][5]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Read(tt.want, tt.path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.out, shown(t, got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// picture is red above blue.
func picture(width, height int) []byte {
	m := image.NewNRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			c := color.NRGBA{R: 255, A: 255}
			if y >= height/2 {
				c = color.NRGBA{B: 255, A: 255}
			}
			m.SetNRGBA(x, y, c)
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestImagesTakeTheModelsSizeLayoutAndRange(t *testing.T) {
	path := file(t, "x.png", picture(1, 2))
	tests := map[string]struct {
		want client.Description
		out  string
	}{
		"channels first":    {want(tensor.FP32, -1, 3, 2, 1), "[1,3,2,1][1,0,0,0,0,1]"},
		"channels last":     {want(tensor.Uint8, 2, 1, 3), "[2,1,3][255,0,0,0,0,255]"},
		"with transparency": {want(tensor.Int32, -1, 2, 1, 4), "[1,2,1,4][255,0,0,255,0,0,255,255]"},
		"grey":              {want(tensor.Uint8, -1, 1, 2, 1), "[1,1,2,1][76,29]"},
		"grey, no channels": {want(tensor.Uint8, 2, 1), "[2,1][76,29]"},
		"its own size":      {want(tensor.Uint8, -1, -1, -1, 3), "[1,2,1,3][255,0,0,0,0,255]"},
		"wider":             {want(tensor.Uint8, 3, 2, 2), "[3,2,2][255,255,0,0,0,0,0,0,0,0,255,255]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Read(tt.want, path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.out, shown(t, got)); diff != "" {
				t.Error(diff)
			}
		})
	}
	whole, err := Read(want(tensor.Bytes, -1, 1), path)
	if err != nil || len(whole.Data) != len(picture(1, 2))+4 {
		t.Errorf("as it is: %d bytes, %v", len(whole.Data), err)
	}
}

func TestHalfPrecisionComesBack(t *testing.T) {
	for h := range 1 << 16 {
		f := unhalf(uint16(h))
		if math.IsNaN(f) {
			if !math.IsNaN(unhalf(half(f))) {
				t.Errorf("%#x is no longer NaN", h)
			}
			continue
		}
		if got := half(f); got != uint16(h) {
			t.Fatalf("%#x is %g is %#x", h, f, got)
		}
	}
}

func TestOutputsThatAreCutOff(t *testing.T) {
	for _, d := range []tensor.Datatype{tensor.Int32, tensor.Bytes} {
		if v, err := Elements(client.Tensor{Description: want(d, 1), Data: []byte{9, 0}}, -1); err == nil {
			t.Errorf("%s: %s", d, v)
		}
	}
}

func FuzzNPY(f *testing.F) {
	f.Add(npy("<i4", "False", "1, 2", "abcdefgh"))
	f.Add(npy("|S3", "False", "2,", "abcdef"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range []tensor.Datatype{tensor.Int32, tensor.Bytes} {
			v, err := fromNPY(want(d, -1), data)
			if err != nil {
				continue
			}
			if _, err := Elements(v, -1); err != nil {
				t.Errorf("a bad tensor of %q: %v", data, err)
			}
		}
	})
}

func FuzzPNG(f *testing.F) {
	f.Add(picture(1, 1))
	f.Add(picture(5, 3))
	f.Add(picture(5, 3)[:40])
	f.Fuzz(func(t *testing.T, data []byte) {
		if about, err := png.DecodeConfig(bytes.NewReader(data)); err == nil && (about.Width > 1000 || about.Height > 1000) {
			return // it is taken, and takes long
		}
		for _, shape := range []tensor.Shape{{-1, -1, 3}, {1, 4, 4}, {1, 3, -1, 2}} {
			for _, d := range []tensor.Datatype{tensor.FP32, tensor.Uint8, tensor.Bytes} {
				v, err := fromPNG(want(d, shape...), data)
				if err != nil {
					continue
				}
				if _, err := Elements(v, -1); err != nil {
					t.Errorf("a bad tensor %v of %q: %v", v.Description, data, err)
				}
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`[[1,2],[3,4]]`))
	f.Add([]byte(`["a"]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range []tensor.Datatype{tensor.FP16, tensor.Bytes} {
			v, err := fromJSON(want(d, -1), data)
			if err != nil {
				continue
			}
			if elements, err := Elements(v, -1); err != nil || int64(len(elements)) != v.Shape[0] {
				t.Errorf("a bad tensor of %q: %v", data, err)
			}
		}
	})
}
