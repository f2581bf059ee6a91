package rpc

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// LogSettings implements the RPC. Unlike Triton it changes nothing if one setting is invalid.
func (s *service) LogSettings(ctx context.Context, r *inference.LogSettingsRequest) (*inference.LogSettingsResponse, error) {
	changes, err := logChanges(r.GetSettings())
	if err != nil {
		return nil, err
	}
	settings, err := s.gateway.ChangeLog(ctx, changes)
	if err != nil {
		return nil, err
	}
	flag := func(on bool) *inference.LogSettingsResponse_SettingValue {
		return &inference.LogSettingsResponse_SettingValue{ParameterChoice: &inference.LogSettingsResponse_SettingValue_BoolParam{BoolParam: on}}
	}
	text := func(text string) *inference.LogSettingsResponse_SettingValue {
		return &inference.LogSettingsResponse_SettingValue{ParameterChoice: &inference.LogSettingsResponse_SettingValue_StringParam{StringParam: text}}
	}
	return &inference.LogSettingsResponse{Settings: map[string]*inference.LogSettingsResponse_SettingValue{
		"log_file": text(settings.File), "log_info": flag(settings.Info), "log_warning": flag(settings.Warning), "log_error": flag(settings.Error),
		"log_verbose_level": {ParameterChoice: &inference.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: settings.Verbose}},
		"log_format":        text(settings.Format),
	}}, nil
}

// logChanges reads the settings, in Triton's order and with its texts.
func logChanges(settings map[string]*inference.LogSettingsRequest_SettingValue) (c core.LogChanges, err error) {
	if _, given := settings["log_file"]; given {
		return c, core.LogFileFixed()
	}
	for _, flag := range []struct {
		name string
		to   **bool
	}{{"log_info", &c.Info}, {"log_warning", &c.Warning}, {"log_error", &c.Error}} {
		value, given := settings[flag.name]
		if !given {
			continue
		}
		choice, ok := value.GetParameterChoice().(*inference.LogSettingsRequest_SettingValue_BoolParam)
		if !ok {
			return c, errs.New(errs.InvalidParameter, "expect boolean for '%s'", flag.name)
		}
		*flag.to = &choice.BoolParam
	}
	if value, given := settings["log_verbose_level"]; given {
		choice, ok := value.GetParameterChoice().(*inference.LogSettingsRequest_SettingValue_Uint32Param)
		if !ok {
			return c, errs.New(errs.InvalidParameter, "expect int32 for 'log_verbose_level'")
		}
		c.Verbose = &choice.Uint32Param
	}
	if value, given := settings["log_format"]; given {
		choice, ok := value.GetParameterChoice().(*inference.LogSettingsRequest_SettingValue_StringParam)
		switch {
		case !ok:
			return c, errs.New(errs.InvalidParameter, "expect string for 'log_format'")
		case !core.LogFormat(choice.StringParam):
			return c, errs.New(errs.InvalidParameter, "invalid argument for log_format, got: %s", choice.StringParam)
		}
		c.Format = &choice.StringParam
	}
	return c, nil
}
