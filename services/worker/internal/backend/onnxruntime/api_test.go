//go:build cgo

package onnxruntime

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The shim calls ONNX Runtime's functions by their number in the OrtApi
// table. This compares the numbers and the parameter counts with the header
// that comes with the Go binding.
func TestSlotsAreThoseOfTheHeader(t *testing.T) {
	declared := headerSlots(t)
	text, err := os.ReadFile("ort_api.h")
	if err != nil {
		t.Fatal(err)
	}
	used := regexp.MustCompile(`(?m)^  X\((\d+), [^,]+, (\w+), \((.*)\)\)`).FindAllStringSubmatch(string(text), -1)
	if len(used) < 30 {
		t.Fatalf("found %d slots in ort_api.h: the pattern no longer fits", len(used))
	}
	for _, u := range used {
		n, _ := strconv.Atoi(u[1])
		if n >= len(declared) {
			t.Errorf("%s is slot %d of %d", u[2], n, len(declared))
			continue
		}
		d := declared[n]
		if d.name != u[2] {
			t.Errorf("slot %d is %s in the header, %s in the shim", n, d.name, u[2])
		}
		if got := strings.Count(u[3], ",") + 1; got != d.parameters {
			t.Errorf("%s has %d parameters in the header, %d in the shim", d.name, d.parameters, got)
		}
	}
}

type slot struct {
	name       string
	parameters int
}

func headerSlots(t *testing.T) []slot {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/yalue/onnxruntime_go").Output()
	if err != nil {
		t.Skipf("the binding's module cannot be found: %v", err)
	}
	raw, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "onnxruntime_c_api.h"))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(raw), "")
	text = regexp.MustCompile(`//.*`).ReplaceAllString(text, "")
	_, text, _ = strings.Cut(text, "struct OrtApi {")
	text, _, _ = strings.Cut(text, "\n};")
	var slots []slot
	members := regexp.MustCompile(`(?s)ORT_API2_STATUS\(\s*(\w+)(.*?)\)\s*;|ORT_CLASS_RELEASE\(\s*(\w+)\)|ORT_API_T\([^,]*,\s*(\w+)(.*?)\)\s*;|\(\s*ORT_API_CALL\s*\*\s*(\w+)\s*\)\((.*?)\)`)
	for _, m := range members.FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] != "":
			slots = append(slots, slot{m[1], strings.Count(m[2], ",")})
		case m[3] != "":
			slots = append(slots, slot{"Release" + m[3], 1})
		case m[4] != "":
			slots = append(slots, slot{m[4], strings.Count(m[5], ",")})
		default:
			slots = append(slots, slot{m[6], strings.Count(m[7], ",") + 1})
		}
	}
	return slots
}

func TestElementTypesAreInverse(t *testing.T) {
	for element := range int32(30) {
		if d := datatypeOf(element); d.Valid() && elementOf(d) != element {
			t.Errorf("element type %d is %s, whose element type is %d", element, d, elementOf(d))
		}
	}
}
