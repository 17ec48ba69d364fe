package idempotency

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// recorder keeps back what a handler writes until it is stored. A response that is flushed, hijacked or too large is passed on instead, from then on as it is written.
type recorder struct {
	http.ResponseWriter
	outer  http.Header // that others had set before
	limit  int
	status int         // 0: nothing was written
	header http.Header // as it was when the status was written
	body   []byte
	direct atomic.Bool // it is passed on
	kept   atomic.Bool // Respond was called: nothing is passed on before the handler returns
}

func newRecorder(w http.ResponseWriter, limit int) *recorder {
	return &recorder{ResponseWriter: w, outer: w.Header().Clone(), limit: limit}
}

// Unwrap lets http.ResponseController find what is not here, such as deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	switch {
	case r.direct.Load():
		r.status = max(r.status, status)
		r.ResponseWriter.WriteHeader(status)
	case r.status != 0: // it is too late
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idempotency: invalid WriteHeader code %d", status)) // as the server does, but before it is stored
	case status < 200 && status != http.StatusSwitchingProtocols:
		r.ResponseWriter.WriteHeader(status) // the response is still to come
	default:
		r.status, r.header = status, r.Header().Clone()
		if r.header.Get("Trailer") != "" || status == http.StatusSwitchingProtocols {
			r.pass()
		}
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !r.direct.Load() && !r.kept.Load() && len(r.body)+len(p) > r.limit {
		r.pass()
	}
	if r.direct.Load() {
		return r.ResponseWriter.Write(p)
	}
	r.body = append(r.body, p...)
	return len(p), nil
}

// FlushError is Flush for http.ResponseController.
func (r *recorder) FlushError() error {
	if r.kept.Load() {
		return nil
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.pass()
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Flush sends what was written, and from now on everything at once.
func (r *recorder) Flush() { _ = r.FlushError() }

// Hijack hands the connection over.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if r.kept.Load() || r.status != 0 && !r.direct.Load() {
		return nil, nil, http.ErrNotSupported
	}
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.status = http.StatusSwitchingProtocols
		r.direct.Store(true)
	}
	return conn, rw, err
}

// pass sends what was kept back, and from now on everything at once.
func (r *recorder) pass() {
	if r.direct.Load() || r.kept.Load() {
		return
	}
	r.direct.Store(true)
	replace(r.Header(), r.header)
	r.ResponseWriter.WriteHeader(r.status)
	if len(r.body) > 0 {
		_, _ = r.ResponseWriter.Write(r.body) // the client left
	}
	r.body = nil
}

// response is what was kept back, with the headers that are stored.
func (r *recorder) response(allowed []string) record {
	if _, ok := r.header["Content-Type"]; !ok && len(r.body) > 0 && r.header.Get("Content-Encoding") == "" {
		r.header.Set("Content-Type", http.DetectContentType(r.body)) // as the server would
	}
	out := record{Status: r.status, Header: map[string][][]byte{}, Body: r.body}
	for _, name := range allowed {
		for _, value := range r.header[name] {
			out.Header[name] = append(out.Header[name], []byte(value))
		}
	}
	return out
}

// storable reports whether what was kept back can be stored: after a call of Respond everything is kept back.
func (r *recorder) storable() bool {
	return len(r.body) <= r.limit && r.status != http.StatusSwitchingProtocols && !r.trailers()
}

// trailers reports whether there are any, announced or not.
func (r *recorder) trailers() bool {
	for name := range r.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return r.header.Get("Trailer") != ""
}

// send sends what was kept back. It is complete then, whatever its handler still has to do.
func (r *recorder) send() {
	if r.trailers() {
		late := r.Header().Clone()
		r.kept.Store(false)
		r.pass()
		_ = http.NewResponseController(r.ResponseWriter).Flush() // so that there can be something after it
		maps.Copy(r.Header(), late)
		return
	}
	r.direct.Store(true)
	replace(r.Header(), r.header)
	deliver(r.ResponseWriter, r.status, r.body)
}

// replay sends a stored response instead of anything that the handler wrote.
func (r *recorder) replay(stored *record, mark bool) {
	r.direct.Store(true)
	replace(r.Header(), r.outer)
	replay(r.ResponseWriter, stored, mark)
}

// refuse sends a problem instead of anything that the handler wrote.
func (r *recorder) refuse(p *problem) {
	r.direct.Store(true)
	replace(r.Header(), r.outer)
	p.send(r.ResponseWriter)
}

// replace makes h the same as by.
func replace(h, by http.Header) {
	clear(h)
	maps.Copy(h, by)
}

// replay sends a stored response; mark says that it is not the first time.
func replay(w http.ResponseWriter, stored *record, mark bool) {
	h := w.Header()
	for name, values := range stored.Header {
		h[name] = nil
		for _, value := range values {
			h[name] = append(h[name], string(value))
		}
	}
	if _, ok := stored.Header["Content-Type"]; !ok {
		h["Content-Type"] = nil // else the server guesses
	}
	if mark {
		h.Set(Replayed, "true")
	}
	deliver(w, stored.Status, stored.Body)
}

// deliver sends a whole response, so that the client has it before the handler returns.
func deliver(w http.ResponseWriter, status int, body []byte) {
	if status != http.StatusNoContent && status != http.StatusNotModified && w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // the client left
	}
	_ = http.NewResponseController(w).Flush() // or the server does, a little later
}

// send answers with the problem.
func (p *problem) send(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.later {
		h.Set("Retry-After", "1")
	}
	body, err := json.Marshal(map[string]any{"title": title(p.status), "status": p.status, "code": p.code, "detail": p.detail})
	if err != nil {
		panic(err) // strings and a number
	}
	deliver(w, p.status, body)
}

func title(status int) string {
	if text := http.StatusText(status); text != "" {
		return text
	}
	return "Request Cancelled" // 499 has no name
}

// storedHeader returns a header that was given, as it is stored.
func storedHeader(h http.Header) map[string][][]byte {
	out := map[string][][]byte{}
	for name, values := range h {
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(framing, name) {
			continue
		}
		for _, value := range values {
			out[name] = append(out[name], []byte(value))
		}
	}
	return out
}
