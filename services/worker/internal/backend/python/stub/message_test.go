package stub

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzHeader holds that headers of any bytes are read or refused, that tensors lie
// within their body, and that nothing of a message stays for the next.
func FuzzHeader(f *testing.F) {
	for _, header := range []string{
		`{"t":"ran","batch":7,"responses":[[0,{"outs":[["OUT","FP32",[2],[8]],["BIG","BYTES",[-1],[3,4096,8192]]],"params":{"a":1,"b":true,"c":"x","d":NaN}},true],[1,null,false]],"again":[2]}`,
		`{"t":"ran","batch":7,"error":["INTERNAL","no\u00e9\ud83d\ude00"],"traceback":"a\nb"}`,
		`{"t":"respond","batch":1,"request":0,"response":{"error":["CANCELLED",""]},"final":true,"files":[[1,1048576]]}`,
		`{"t":"call","call":3,"batch":1,"model":"m","version":"1","decoupled":true,"corr":"key","flags":3,"timeout":5,"priority":1,"outs":["A"],"ins":[["A","INT8",[4],[4]]]}`,
		`{"t":"metric","family":1,"metric":2,"labels":{"k":"v"},"buckets":[1,2.5,1e300]}`,
		`{"t":"control","id":1,"op":"load","model":"m","config":"{}","contents":[["1/model.py",4]],"dependents":false}`,
		`{"t":"room","call":3,"n":16}`,
		`{"t":"release","slots":[[1,0],[1,4096]]}`, `{"t":"drop","files":[1,2]}`, `{"t":"started","asks":true,"unknown":{"a":[[null]]}}`,
	} {
		f.Add([]byte(header), uint16(8))
	}
	ownCopies := cmp.Options{cmp.AllowUnexported(Message{}), cmpopts.EquateEmpty(), cmpopts.EquateNaNs()}
	f.Fuzz(func(t *testing.T, header []byte, bodyBytes uint16) {
		var m, again Message
		err := m.Parse(header)
		if used := again.Parse([]byte(`{"t":"ran","batch":1,"responses":[[0,{"outs":[["X","INT8",[1],[1]]]},true]],"again":[1],"traceback":"x"}`)); used != nil {
			t.Fatal(used)
		}
		if second := again.Parse(header); (err == nil) != (second == nil) {
			t.Fatalf("%v at first, and then %v", err, second)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(m, again, ownCopies); diff != "" {
			t.Errorf("a message that was used before reads otherwise:\n%s", diff)
		}
		if m.placeTensors(int64(bodyBytes)) != nil {
			return
		}
		for _, tensor := range m.Tensors {
			if tensor.InBody && (tensor.Offset < 0 || tensor.Length < 0 || tensor.Offset+tensor.Length > int64(bodyBytes)) {
				t.Errorf("a tensor at %d of %d bytes in a body of %d", tensor.Offset, tensor.Length, bodyBytes)
			}
		}
	})
}
