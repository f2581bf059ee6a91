// Package listing writes protobuf definitions as text, one element a line,
// for tests that pin names and numbers.
package listing

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Of returns the lines of all messages, fields, enum values and methods of
// the files. Messages, enums and services are sorted by name; what is within
// them stands as declared, since JSON and text are printed in that order.
//
//	message NAME
//	field MESSAGE NAME NUMBER TYPE singular|optional|repeated|map ONEOF JSONNAME
//	enum ENUM NAME NUMBER
//	method SERVICE NAME INPUT OUTPUT unary|stream unary|stream
//
// ONEOF is - for a field in none.
func Of(files ...protoreflect.FileDescriptor) []string {
	var blocks []string
	for _, file := range files {
		blocks = append(blocks, enums(file.Enums())...)
		blocks = append(blocks, messages(file.Messages())...)
		blocks = append(blocks, services(file.Services())...)
	}
	slices.Sort(blocks)
	return strings.Split(strings.Join(blocks, "\n"), "\n")
}

func messages(list protoreflect.MessageDescriptors) []string {
	var blocks []string
	for i := range list.Len() {
		m := list.Get(i)
		if m.IsMapEntry() {
			continue
		}
		lines := []string{"message " + string(m.FullName())}
		for j := range m.Fields().Len() {
			lines = append(lines, field(m.Fields().Get(j)))
		}
		blocks = append(blocks, strings.Join(lines, "\n"))
		blocks = append(blocks, enums(m.Enums())...)
		blocks = append(blocks, messages(m.Messages())...)
	}
	return blocks
}

func field(f protoreflect.FieldDescriptor) string {
	oneof := "-"
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		oneof = string(o.Name())
	}
	return fmt.Sprintf("field %s %s %d %s %s %s %s", f.ContainingMessage().FullName(), f.Name(),
		f.Number(), typeOf(f), label(f), oneof, f.JSONName())
}

func typeOf(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return fmt.Sprintf("map<%s,%s>", typeOf(f.MapKey()), typeOf(f.MapValue()))
	}
	if m := f.Message(); m != nil {
		return string(m.FullName())
	}
	if e := f.Enum(); e != nil {
		return string(e.FullName())
	}
	return f.Kind().String()
}

func label(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return "map"
	}
	if f.IsList() {
		return "repeated"
	}
	if f.HasOptionalKeyword() {
		return "optional"
	}
	return "singular"
}

func enums(list protoreflect.EnumDescriptors) []string {
	var blocks []string
	for i := range list.Len() {
		e := list.Get(i)
		var lines []string
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			lines = append(lines, fmt.Sprintf("enum %s %s %d", e.FullName(), v.Name(), v.Number()))
		}
		blocks = append(blocks, strings.Join(lines, "\n"))
	}
	return blocks
}

func services(list protoreflect.ServiceDescriptors) []string {
	var blocks []string
	for i := range list.Len() {
		s := list.Get(i)
		var lines []string
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			lines = append(lines, fmt.Sprintf("method %s %s %s %s %s %s", s.FullName(), m.Name(),
				m.Input().FullName(), m.Output().FullName(),
				mode(m.IsStreamingClient()), mode(m.IsStreamingServer())))
		}
		blocks = append(blocks, strings.Join(lines, "\n"))
	}
	return blocks
}

func mode(stream bool) string {
	if stream {
		return "stream"
	}
	return "unary"
}
