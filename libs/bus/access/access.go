// Package access defines which service may write which keys of the control
// plane's store, and creates the NATS users that enforce it: a key for each
// service and, for the server, the permissions of each key.
//
// All services may read every bucket, because buckets contain no secrets. One
// service writes each key. Only the registry creates buckets; the others wait for
// them. Replies go to an inbox that only the requesting user can read.
//
// All replicas of a service share its key, so any of them may write what one of
// them may.
package access

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/bus"
)

// Service is a kind of process with NATS credentials of its own, which all its
// replicas share.
type Service struct {
	// Name is the service's name: gateway, scheduler, worker or registry.
	Name string
	// Writes are the keys that it may write.
	Writes []Keys
	// Clears are keys of another service that it deletes when their writer is
	// gone. NATS cannot distinguish a deletion from a write, so it may write them.
	Clears []Keys
	// Reads says that it reads the object store of files given through the load
	// API.
	Reads bool
	// Makes says that it may create and reconfigure buckets, and write that object store.
	Makes bool
	// Asks and Answers are the subjects on which it may ask and answer questions.
	Asks, Answers []bus.Subject
}

// Keys are keys of a bucket.
type Keys struct {
	// Bucket is a bucket of the table in package bus.
	Bucket string
	// Pattern is a key as NATS writes it, in which * stands for one part
	// between dots and a last > for all that follow. Empty is every key.
	Pattern string
}

// Services lists the keys that each service writes: one service writes each key of a bucket.
func Services() []Service {
	return []Service{
		{
			Name: "gateway", Writes: []Keys{{Bucket: bus.Gateways}, {Bucket: bus.Quotas}},
			Asks: []bus.Subject{bus.AskGateways, bus.AskSchedulers}, Answers: []bus.Subject{bus.AskGateways},
		},
		{
			Name: "scheduler", Writes: []Keys{{Bucket: bus.Schedulers}, {bus.Leaders, "pool.>"}, {Bucket: bus.Attached}, {Bucket: bus.Costs}},
			Answers: []bus.Subject{bus.AskSchedulers},
		},
		{Name: "worker", Reads: true, Writes: []Keys{{Bucket: bus.Workers}, {Bucket: bus.Instances}}},
		{Name: "registry", Makes: true, Clears: []Keys{{Bucket: bus.Instances}}, Writes: []Keys{
			{Bucket: bus.Models},
			{Bucket: bus.Assignments},
			{Bucket: bus.Pools},
			{Bucket: bus.Settings},
			{Bucket: bus.Policies},
			{Bucket: bus.Registries},
			{bus.Leaders, "registry"},
		}},
	}
}

// Permissions are the subjects that a NATS user may publish and subscribe to.
type Permissions struct {
	Publish   []string
	Subscribe []string
	// Responses says that it may reply to a request, once and within seconds.
	Responses bool
}

// Permissions returns what NATS must allow to the service's user whose public
// key is given.
func (s Service) Permissions(key string) Permissions {
	publish := []string{"$JS.API.INFO"}
	for _, spec := range bus.Buckets() {
		publish = append(publish, s.onStream(bus.StreamName(spec.Name))...)
	}
	for _, keys := range slices.Concat(s.Writes, s.Clears) {
		publish = append(publish, keys.subject())
	}
	if s.Reads || s.Makes {
		publish = append(publish, s.onStream(bus.ArtifactsStream)...)
	}
	if s.Makes { // it also fills the store, and removes what no model needs
		publish = append(publish, bus.ArtifactsSubjects, "$JS.API.STREAM.PURGE."+bus.ArtifactsStream)
	}
	for _, subject := range s.Asks {
		publish = append(publish, string(subject))
	}
	subscribe := []string{bus.Inbox(key) + ".>"}
	for _, subject := range s.Answers {
		subscribe = append(subscribe, string(subject))
	}
	return Permissions{Publish: publish, Subscribe: subscribe, Responses: len(s.Answers) > 0}
}

// onStream is what reading a bucket takes, and for the maker making it.
func (s Service) onStream(stream string) []string {
	subjects := []string{
		"$JS.API.STREAM.INFO." + stream,
		"$JS.API.STREAM.MSG.GET." + stream,
		"$JS.API.DIRECT.GET." + stream + ".>",
		"$JS.API.CONSUMER.CREATE." + stream + ".>",
		"$JS.API.CONSUMER.INFO." + stream + ".>",
		"$JS.API.CONSUMER.DELETE." + stream + ".>",
		"$JS.FC." + stream + ".>", // a watch's flow control
	}
	if s.Makes {
		subjects = append(subjects, "$JS.API.STREAM.CREATE."+stream, "$JS.API.STREAM.UPDATE."+stream)
	}
	return subjects
}

func (k Keys) subject() string {
	pattern := k.Pattern
	if pattern == "" {
		pattern = ">"
	}
	return bus.SubjectPrefix(k.Bucket) + pattern
}
