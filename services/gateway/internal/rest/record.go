package rest

import (
	"net/http"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/record"
)

// Default bounds of a recording, and the longest duration.
const (
	defaultRecordingTime  = time.Minute
	defaultRecordingBytes = 1 << 30
	maxRecordingTime      = 24 * time.Hour
)

// record responds with a recording of the requests that arrive from now on.
func (s *server) record(c *call) error {
	if err := s.options.Recordings.Refusal(); err != nil {
		return err
	}
	document, err := readControl(c.http.Body)
	if err != nil {
		return err
	}
	if err := jsoninfer.CheckSyntax(document); err != nil {
		return err
	}
	request := recordingRequest{Share: 1, MaxBytes: defaultRecordingBytes, Seconds: defaultRecordingTime.Seconds()}
	if err := unmarshalObject(document, &request); err != nil {
		return err
	}
	options, err := request.options()
	if err != nil {
		return err
	}
	// Requests that end later ask for the recording caller, and by then the call may have been reused.
	options.Sees = (&path.Call{Tenant: c.Tenant}).Sees
	response := http.NewResponseController(c.writer)
	started := func() {
		c.responding = true
		c.writer.Header().Set("Content-Type", "application/octet-stream")
		c.writer.WriteHeader(http.StatusOK)
		s.options.Recorded(&c.Call, options, nil)
	}
	summary, err := s.options.Recordings.Record(c.http.Context(), options, started, c.writer, response.Flush)
	if summary != nil {
		s.options.Recorded(&c.Call, options, summary)
	}
	if c.responding && err != nil {
		panic(http.ErrAbortHandler) // shows the client that the recording was cut off
	}
	return err
}

// recordingRequest is what a client asks for.
type recordingRequest struct {
	Models   []string `json:"models"`
	Tenants  []string `json:"tenants"`
	Share    float64  `json:"share"`
	MaxBytes int64    `json:"max_bytes"`
	Seconds  float64  `json:"seconds"`
	Answers  bool     `json:"answers"`
}

func (r *recordingRequest) options() (o record.Options, err error) {
	if !(r.Seconds > 0 && r.Seconds <= maxRecordingTime.Seconds()) {
		return o, errs.New(errs.InvalidParameter, "the recording is of %v seconds: want more than 0, and %.0f at most", r.Seconds, maxRecordingTime.Seconds())
	}
	o = record.Options{
		Models: r.Models, Tenants: r.Tenants, Share: r.Share, MaxBytes: r.MaxBytes, Answers: r.Answers,
		Duration: time.Duration(r.Seconds * float64(time.Second)),
	}
	return o, o.Check()
}
