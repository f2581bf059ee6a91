package listing_test

import (
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/proto/internal/listing"
)

const source = `
syntax = "proto3";
package p;
service S { rpc Do(stream B) returns (A); }
enum E { E_ZERO = 0; E_ONE = 1; }
message B {
  message In { bool deep = 1; }
  repeated In list = 2;
  map<string, In> by_name = 1;
}
message A {
  optional int64 maybe = 1;
  oneof choice { E kind = 2; bytes raw_data = 3; }
  double plain = 4 [json_name = "other"];
}
`

func TestEveryElementIsListed(t *testing.T) {
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"p.proto": source}),
	}}
	files, err := compiler.Compile(t.Context(), "p.proto")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(`
enum p.E E_ZERO 0
enum p.E E_ONE 1
message p.A
field p.A maybe 1 int64 optional - maybe
field p.A kind 2 p.E singular choice kind
field p.A raw_data 3 bytes singular choice rawData
field p.A plain 4 double singular - other
message p.B
field p.B list 2 p.B.In repeated - list
field p.B by_name 1 map<string,p.B.In> map - byName
message p.B.In
field p.B.In deep 1 bool singular - deep
method p.S Do p.B p.A stream unary`), "\n")
	if diff := cmp.Diff(want, listing.Of(files[0])); diff != "" {
		t.Errorf("listing differs (-want +got):\n%s", diff)
	}
}
