package config

import (
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Named reads values such as name,key=value of a flag into settings by name. A
// later value replaces an earlier one; an empty name is allowed. Errors have
// the reason config_invalid.
func Named(flag string, values []string) (map[string]map[string]string, error) {
	all := make(map[string]map[string]string)
	for _, text := range values {
		name, setting, ok := strings.Cut(text, ",")
		key, value, assigned := strings.Cut(setting, "=")
		if !ok || !assigned || key == "" {
			return nil, errs.New(errs.ConfigInvalid, "--%s=%s: want a name and a setting, such as NAME,KEY=VALUE", flag, text)
		}
		if all[name] == nil {
			all[name] = make(map[string]string)
		}
		all[name][key] = value
	}
	return all, nil
}
