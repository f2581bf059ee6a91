package policy

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"
)

// Schema returns the JSON schema of policies, for editors.
func Schema() ([]byte, error) {
	r := &jsonschema.Reflector{
		FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true, ExpandedStruct: true, Anonymous: true,
		Namer: func(t reflect.Type) string { return strings.TrimSuffix(t.Name(), "Document") },
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			either := []*jsonschema.Schema{{Type: "string"}, {Type: "number"}}
			switch t {
			case reflect.TypeFor[Duration](), reflect.TypeFor[Day]():
				return &jsonschema.Schema{Type: "string"}
			case reflect.TypeFor[Size](), reflect.TypeFor[Share]():
				return &jsonschema.Schema{OneOf: either}
			}
			return nil
		},
	}
	s := r.Reflect(&document{})
	s.Title = "Policy of a Nereid server"
	return json.MarshalIndent(s, "", "  ")
}
