package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// Switch is a flag that takes the word true or false, as Triton's do:
// --allow-http=false or --allow-http false. It is a struct since kong would
// take a bool for a flag without a value.
type Switch struct{ On bool }

// Decode reads the word; it implements [kong.MapperValue].
func (s *Switch) Decode(ctx *kong.DecodeContext) error {
	var word string
	if err := ctx.Scan.PopValueInto("true or false", &word); err != nil {
		return err
	}
	switch strings.ToLower(word) {
	case "true", "1", "yes", "on":
		s.On = true
	case "false", "0", "no", "off":
		s.On = false
	default:
		return fmt.Errorf("want true or false, not %q", word)
	}
	return nil
}

// String returns true or false.
func (s Switch) String() string { return strconv.FormatBool(s.On) }
