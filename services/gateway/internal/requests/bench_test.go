package requests_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// sent takes all that is submitted.
type sent struct{}

func (sent) Submit(*infer.Request) error     { return nil }
func (sent) Cancel(infer.RequestID)          {}
func (sent) CacheUsed(infer.CacheUse)        {}
func (sent) EnsembleEnded(infer.EnsembleEnd) {}
func (sent) Done() <-chan struct{}           { return nil }

// BenchmarkRequest is what the table costs a request from its admission to its
// response, with the scheduler in this process and apart.
func BenchmarkRequest(b *testing.B) {
	for name, apart := range map[string]bool{"together": false, "apart": true} {
		b.Run(name, func(b *testing.B) {
			table := requests.New(origin)
			pool := table.NewPool("default", requests.DefaultBounds(), mono.New(), nil)
			pool.Begin(b.Context(), sent{}, 1)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var responses requests.Responses
				r, p := new(infer.Request), new(infer.Response)
				for pb.Next() {
					w := infer.Work{Request: table.NextID(), Attempt: 1}
					r.Work = w
					responses.Open()
					table.Open(w, &infer.ModelRef{Name: "m"}, &responses)
					if apart {
						if err := pool.Submit(r); err != nil {
							b.Fatal(err)
						}
						pool.Placed(w, 7)
					}
					*p = infer.Response{Work: w, Final: true}
					table.Respond(p)
					responses.Next(b.Context())
				}
			})
		})
	}
}
