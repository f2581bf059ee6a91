package config_test

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/config"
)

type inner struct {
	Size int64 `name:"size" default:"5"`
}

type several struct {
	Text   string        `name:"text"`
	Count  int           `name:"count" default:"4"`
	On     config.Switch `name:"on" default:"true"`
	List   []string      `name:"list" sep:"none"`
	Inner  inner         `embed:""`
	Hidden string        `kong:"-"`
}

// What one program was given another one gets, by its command line.
func TestFlagsGiveTheSettings(t *testing.T) {
	for _, want := range []several{
		{Text: "a b,c", Count: 0, List: []string{"x,y", "--z"}, Inner: inner{Size: 1 << 40}},
		{Count: 4, On: config.Switch{On: true}, Inner: inner{Size: 5}},
	} {
		var got several
		parser, err := kong.New(&got)
		if err != nil {
			t.Fatal(err)
		}
		hidden := want
		hidden.Hidden = "not a setting"
		if _, err := parser.Parse(config.Flags(hidden)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}
