package config

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/alecthomas/kong"
)

// Numbers makes kong's errors about numbers say which values are valid.
func Numbers() kong.Option { return kong.KindMapper(reflect.Int, kong.MapperFunc(number)) }

func number(ctx *kong.DecodeContext, target reflect.Value) error {
	const want = "a whole number"
	token, err := ctx.Scan.PopValue(want)
	if err != nil {
		return err
	}
	text := fmt.Sprint(token.Value) // a file may have a list here
	n, err := strconv.ParseInt(text, 0, target.Type().Bits())
	if err != nil {
		return fmt.Errorf("want %s, not %q", want, text)
	}
	target.SetInt(n)
	return nil
}
