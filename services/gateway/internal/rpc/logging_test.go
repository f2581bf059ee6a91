package rpc

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

type fakeLog struct{ changes map[string]string }

func (*fakeLog) Settings() core.LogSettings {
	return core.LogSettings{File: "l", Warning: true, Verbose: 2, Format: "ISO8601"}
}

func (l *fakeLog) Set(_ context.Context, changes map[string]string) error {
	l.changes = changes
	return nil
}

type choice = inference.LogSettingsRequest_SettingValue

func flag(on bool) *choice {
	return &choice{ParameterChoice: &inference.LogSettingsRequest_SettingValue_BoolParam{BoolParam: on}}
}

func level(n uint32) *choice {
	return &choice{ParameterChoice: &inference.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: n}}
}

func text(s string) *choice {
	return &choice{ParameterChoice: &inference.LogSettingsRequest_SettingValue_StringParam{StringParam: s}}
}

// The texts are those of Triton's server of release 2.51.
func TestLogSettings(t *testing.T) {
	for name, c := range map[string]struct {
		settings map[string]*choice
		changes  map[string]string
		refusal  string
		reason   errs.Reason
	}{
		"none":                 {},
		"an unknown one":       {settings: map[string]*choice{"foo": level(1)}},
		"all":                  {settings: map[string]*choice{"log_info": flag(true), "log_warning": flag(false), "log_error": flag(true), "log_verbose_level": level(4294967295), "log_format": text("default")}, changes: map[string]string{"log_info": "true", "log_warning": "false", "log_error": "true", "log_verbose_level": "4294967295", "log_format": "default"}},
		"a file":               {settings: map[string]*choice{"log_file": text("x"), "log_info": flag(true)}, refusal: "log file location can not be updated through network protocol", reason: errs.Unsupported},
		"a file of none":       {settings: map[string]*choice{"log_file": {}}, refusal: "log file location can not be updated through network protocol", reason: errs.Unsupported},
		"a text for a flag":    {settings: map[string]*choice{"log_info": text("no")}, refusal: "expect boolean for 'log_info'", reason: errs.InvalidParameter},
		"a flag of none":       {settings: map[string]*choice{"log_error": {}}, refusal: "expect boolean for 'log_error'", reason: errs.InvalidParameter},
		"a flag for a level":   {settings: map[string]*choice{"log_verbose_level": flag(true)}, refusal: "expect int32 for 'log_verbose_level'", reason: errs.InvalidParameter},
		"a level for a format": {settings: map[string]*choice{"log_format": level(1)}, refusal: "expect string for 'log_format'", reason: errs.InvalidParameter},
		"an unknown format":    {settings: map[string]*choice{"log_info": flag(true), "log_format": text("x")}, refusal: "invalid argument for log_format, got: x", reason: errs.InvalidParameter},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(fakeLog)
			s := &service{gateway: core.New(core.ServerInfo{}, core.Deps{Requests: requests.New(1), Logging: log})}
			reply, err := s.LogSettings(t.Context(), &inference.LogSettingsRequest{Settings: c.settings})
			if errs.Of(err) != c.reason || err != nil && errs.From(err).Msg != c.refusal {
				t.Errorf("%v, want %s", err, c.refusal)
			}
			if d := cmp.Diff(c.changes, log.changes); d != "" {
				t.Errorf("changed (-want +got):\n%s", d)
			}
			if err == nil && (len(reply.GetSettings()) != 6 || reply.GetSettings()["log_verbose_level"].GetUint32Param() != 2 || !reply.GetSettings()["log_warning"].GetBoolParam() || reply.GetSettings()["log_format"].GetStringParam() != "ISO8601" || reply.GetSettings()["log_file"].GetStringParam() != "l") {
				t.Errorf("replied %v", reply)
			}
		})
	}
}
