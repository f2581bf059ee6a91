package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Schema returns the JSON schema of policies, for editors.
func Schema() ([]byte, error) {
	m := schemaMaker{defs: make(map[string]*schema)}
	s, err := m.fields(reflect.TypeFor[document]())
	if err != nil {
		return nil, err
	}
	s.Version, s.Defs, s.Title = "https://json-schema.org/draft/2020-12/schema", m.defs, "Policy of a Nereid server"
	return json.MarshalIndent(s, "", "  ")
}

// schema is the part of JSON schema that policies need.
type schema struct {
	Version              string             `json:"$schema,omitempty"`
	Ref                  string             `json:"$ref,omitempty"`
	Defs                 map[string]*schema `json:"$defs,omitempty"`
	OneOf                []*schema          `json:"oneOf,omitempty"`
	Items                *schema            `json:"items,omitempty"`
	Properties           properties         `json:"properties,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"`
	Type                 string             `json:"type,omitempty"`
	Enum                 []int              `json:"enum,omitempty"`
	Minimum              *float64           `json:"minimum,omitempty"`
	ExclusiveMinimum     *float64           `json:"exclusiveMinimum,omitempty"`
	MinItems             int                `json:"minItems,omitempty"`
	MinLength            int                `json:"minLength,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Required             []string           `json:"required,omitempty"`
	Title                string             `json:"title,omitempty"`
	Description          string             `json:"description,omitempty"`
}

// properties are the fields of an object in the order in which people read them.
type properties []property

type property struct {
	name string
	is   *schema
}

// MarshalJSON implements json.Marshaler.
func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(p[i].is)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", p[i].name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// schemaMaker derives schemas from the types of a document.
type schemaMaker struct {
	defs map[string]*schema // of structs, by name
}

// of returns the schema of a value.
func (m *schemaMaker) of(t reflect.Type) (*schema, error) {
	switch t {
	case reflect.TypeFor[Duration](), reflect.TypeFor[Day]():
		return &schema{Type: "string"}, nil
	case reflect.TypeFor[Size](), reflect.TypeFor[Share]():
		return &schema{OneOf: []*schema{{Type: "string"}, {Type: "number"}}}, nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return m.of(t.Elem())
	case reflect.Bool:
		return &schema{Type: "boolean"}, nil
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return &schema{Type: "integer"}, nil
	case reflect.Float64:
		return &schema{Type: "number"}, nil
	case reflect.String:
		return &schema{Type: "string"}, nil
	case reflect.Slice:
		items, err := m.of(t.Elem())
		return &schema{Type: "array", Items: items}, err
	case reflect.Map:
		values, err := m.of(t.Elem())
		return &schema{Type: "object", AdditionalProperties: values}, err
	case reflect.Struct:
		name := strings.TrimSuffix(t.Name(), "Document")
		if m.defs[name] == nil {
			made, err := m.fields(t)
			if err != nil {
				return nil, err
			}
			m.defs[name] = made
		}
		return &schema{Ref: "#/$defs/" + name}, nil
	}
	return nil, fmt.Errorf("a policy has no values of type %s", t)
}

// fields returns the schema of a struct. The tag jsonschema has what its type does not
// say, and jsonschema_description what a field is for.
func (m *schemaMaker) fields(t reflect.Type) (*schema, error) {
	s := &schema{Type: "object", AdditionalProperties: false}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" {
			continue
		}
		is, err := m.of(f.Type)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t.Name(), f.Name, err)
		}
		is.Description = f.Tag.Get("jsonschema_description")
		for rule := range strings.SplitSeq(f.Tag.Get("jsonschema"), ",") {
			if rule == "required" {
				s.Required = append(s.Required, name)
			} else if err := is.apply(rule); err != nil {
				return nil, fmt.Errorf("%s.%s: %w", t.Name(), f.Name, err)
			}
		}
		s.Properties = append(s.Properties, property{name, is})
	}
	return s, nil
}

// apply adds a rule such as minimum=0.
func (s *schema) apply(rule string) (err error) {
	name, value, _ := strings.Cut(rule, "=")
	number := 0.0
	switch name {
	case "":
		return nil
	case "pattern":
		s.Pattern = value
		return nil
	}
	if number, err = strconv.ParseFloat(value, 64); err != nil {
		return fmt.Errorf("the rule %q has no number", rule)
	}
	switch name {
	case "enum":
		s.Enum = append(s.Enum, int(number))
	case "minimum":
		s.Minimum = &number
	case "exclusiveMinimum":
		s.ExclusiveMinimum = &number
	case "minItems":
		s.MinItems = int(number)
	case "minLength":
		s.MinLength = int(number)
	default:
		return fmt.Errorf("there is no rule %q", rule)
	}
	return nil
}
