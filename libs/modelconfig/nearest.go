package modelconfig

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nereid-serving/nereid/libs/spelling"
)

// listed is the most names that a suggestion lists.
const listed = 12

// suggest names what was probably meant: the nearest of known, or all of them
// if none is near and they are few.
func suggest(name string, known []string) string {
	if best := nearest(name, known); best != "" {
		return "did you mean " + best + "?"
	}
	switch {
	case len(known) == 0:
		return "remove it; nothing is set here"
	case len(known) > listed:
		return "remove it or check its spelling"
	}
	return "known here: " + strings.Join(known, ", ")
}

// nearest returns the name of known that differs least from name, or the
// empty string if none is near: differs by at most a third of its letters, or
// has most of name as its beginning. A value without its enum's prefix (FP32
// for TYPE_FP32) is near.
func nearest(name string, known []string) string {
	if alias := tensorAlias(name); alias != "" {
		name = alias
	}
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if strings.HasSuffix(k, "_"+strings.ToUpper(name)) {
			return k
		}
		if d := spelling.Distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	for _, k := range known {
		if n := sharedPrefix(name, k); n >= 6 && n*4 >= len(name)*3 {
			return k
		}
	}
	return ""
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// home returns the path of the one message around desc that has a field of
// this name, for a field that was written in the wrong place; empty if there
// is none or several.
func home(desc protoreflect.MessageDescriptor, name string) string {
	var found []string
	for i := range desc.Fields().Len() {
		fd := desc.Fields().Get(i)
		if fd.Message() != nil && !fd.IsMap() && fd.Message().Fields().ByTextName(name) != nil {
			found = append(found, fd.TextName())
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// tensorAlias maps the datatypes' wire and framework names that are spelled
// differently in a configuration.
func tensorAlias(name string) string {
	switch strings.TrimPrefix(strings.ToUpper(name), "TYPE_") {
	case "BYTES":
		return "TYPE_STRING"
	case "FLOAT", "FLOAT32":
		return "TYPE_FP32"
	case "DOUBLE", "FLOAT64":
		return "TYPE_FP64"
	case "FLOAT16", "HALF":
		return "TYPE_FP16"
	case "BFLOAT16":
		return "TYPE_BF16"
	}
	return ""
}
