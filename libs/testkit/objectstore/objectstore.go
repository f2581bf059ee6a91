// Package objectstore is an object store for tests: a server that implements the
// part of S3 that reading models needs, keeps its objects in memory, and injects
// failures. It checks no signatures.
package objectstore

import (
	"bytes"
	"crypto/md5" //nolint:gosec // what S3 makes ETags of
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bucket is the one bucket that there is.
const Bucket = "models"

// Fault decides what becomes of a request. It answers the request itself and
// returns true, or leaves it to the server.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// Server is a running store. It is safe for concurrent use.
type Server struct {
	http *httptest.Server

	mu      sync.Mutex
	objects map[string]object // by key; guarded by mu
	fault   Fault             // guarded by mu
	log     []string          // guarded by mu
}

type object struct {
	data     []byte
	etag     string
	modified time.Time
}

// Start runs a store until the test ends, and gives the test credentials.
func Start(t *testing.T) *Server {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	s := &Server{objects: make(map[string]object)}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.http.Close)
	return s
}

// URL is the bucket's, as Nereid takes it.
func (s *Server) URL() string {
	return "s3://" + strings.TrimPrefix(s.http.URL, "http://") + "/" + Bucket
}

// Put writes an object, an hour ago.
func (s *Server) Put(key, data string) { s.PutAt(key, data, time.Now().Add(-time.Hour)) }

// PutAt writes an object at a time.
func (s *Server) PutAt(key, data string, at time.Time) {
	sum := md5.Sum([]byte(data)) //nolint:gosec // see above
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = object{data: []byte(data), etag: `"` + hex.EncodeToString(sum[:]) + `"`, modified: at}
}

// PutUntagged writes an object that has no ETag.
func (s *Server) PutUntagged(key, data string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = object{data: []byte(data), modified: time.Now().Add(-time.Hour)}
}

// Delete removes an object.
func (s *Server) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
}

// Fail has a fault look at each request from now on; nil is none.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Requests returns what was asked since the last call, as "GET key range" or
// "LIST prefix".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log
	s.log = nil
	return log
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	if key == "" {
		s.log = append(s.log, "LIST "+r.URL.Query().Get("prefix"))
	} else {
		s.log = append(s.log, strings.TrimSpace(r.Method+" "+key+" "+r.Header.Get("Range")))
	}
	fault, found, known := s.fault, s.objects[key], maps.Clone(s.objects)
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	_, ok := known[key]
	switch {
	case bucket != Bucket:
		Refuse(w, http.StatusNotFound, "NoSuchBucket")
	case key == "":
		list(w, r, known)
	case !ok:
		Refuse(w, http.StatusNotFound, "NoSuchKey")
	default:
		if found.etag != "" {
			w.Header().Set("ETag", found.etag)
		}
		http.ServeContent(w, r, "", found.modified, bytes.NewReader(found.data))
	}
}

// Refuse answers with an error of S3.
func Refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as the test wants it</Message></Error>", code)
}

type (
	listing struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		KeyCount              int
		Contents              []entry
	}
	entry struct {
		Key, ETag    string
		Size         int
		LastModified string
	}
)

func list(w http.ResponseWriter, r *http.Request, objects map[string]object) {
	query := r.URL.Query()
	most, err := strconv.Atoi(query.Get("max-keys"))
	if err != nil {
		most = 1000
	}
	var answer listing
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if !strings.HasPrefix(key, query.Get("prefix")) || key <= query.Get("continuation-token") {
			continue
		}
		if len(answer.Contents) == most {
			answer.IsTruncated, answer.NextContinuationToken = true, answer.Contents[most-1].Key
			break
		}
		o := objects[key]
		answer.Contents = append(answer.Contents, entry{key, o.etag, len(o.data), o.modified.UTC().Format(time.RFC3339Nano)})
	}
	answer.KeyCount = len(answer.Contents)
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(answer)
}
