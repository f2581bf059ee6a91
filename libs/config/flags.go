package config

import (
	"fmt"
	"reflect"
)

// Flags returns the arguments, as --name=value, that pass a struct's settings to another
// program. It skips fields without a name and empty fields, and includes nested structs.
func Flags(settings any) []string {
	v := reflect.Indirect(reflect.ValueOf(settings))
	var list []string
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, named := field.Tag.Lookup("name")
		_, embedded := field.Tag.Lookup("embed")
		switch {
		case embedded:
			list = append(list, Flags(value.Interface())...)
		case !named || value.IsZero() && value.Kind() != reflect.Struct && field.Tag.Get("default") == "":
		case value.Kind() == reflect.Slice:
			for n := range value.Len() {
				list = append(list, fmt.Sprintf("--%s=%v", name, value.Index(n).Interface()))
			}
		default:
			list = append(list, fmt.Sprintf("--%s=%v", name, value.Interface()))
		}
	}
	return list
}
