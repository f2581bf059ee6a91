// Package modelconfig turns a model's config.pbtxt or JSON into one
// normalised, validated [Config].
package modelconfig
