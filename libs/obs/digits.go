package obs

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
)

// inDigits serves h's samples of Prometheus's text format without exponents, as
// Triton does: 1140000000, not 1.14e+09, of which scripts that look for digits
// read 1.14. Other formats pass unchanged.
func inDigits(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := &digits{ResponseWriter: w}
		h.ServeHTTP(d, r)
		_, _ = w.Write(d.partial) // fails only if the client has gone
	})
}

type digits struct {
	http.ResponseWriter
	partial []byte // the start of a line
}

// Write rewrites the lines that are complete.
func (d *digits) Write(p []byte) (int, error) {
	if !strings.HasPrefix(d.Header().Get("Content-Type"), "text/plain") {
		return d.ResponseWriter.Write(p)
	}
	d.partial = append(d.partial, p...)
	var out []byte
	for {
		line, rest, ok := bytes.Cut(d.partial, []byte("\n"))
		if !ok {
			break
		}
		out = append(appendDigits(out, line), '\n')
		d.partial = rest
	}
	d.partial = bytes.Clone(d.partial)
	if _, err := d.ResponseWriter.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// appendDigits appends a line with its value, the last word, in digits.
func appendDigits(out, line []byte) []byte {
	at := bytes.LastIndexByte(line, ' ') + 1
	value := string(line[at:])
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !strings.Contains(value, "e") || bytes.HasPrefix(line, []byte("#")) {
		return append(out, line...)
	}
	return strconv.AppendFloat(append(out, line[:at]...), f, 'f', -1, 64)
}
