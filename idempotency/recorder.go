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

// recorder buffers the handler's response until it is stored. A response that is flushed, hijacked
// or too large is sent instead, and from then on each write goes to the client directly.
type recorder struct {
	http.ResponseWriter
	outer  http.Header // headers set before the handler ran
	limit  int         // of the body, in bytes
	status int         // 0: nothing was written
	header http.Header // the headers at the time of WriteHeader
	body   []byte      // buffered
	direct atomic.Bool // writes go to the client
	kept   atomic.Bool // Respond was called: nothing is sent before the handler returns
}

func newRecorder(w http.ResponseWriter, limit int) *recorder {
	return &recorder{ResponseWriter: w, outer: w.Header().Clone(), limit: limit}
}

// Unwrap gives http.ResponseController the methods that recorder lacks, such as deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	switch {
	case r.direct.Load():
		r.status = max(r.status, status)
		r.ResponseWriter.WriteHeader(status)
	case r.status != 0: // only the first call counts
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idempotency: invalid WriteHeader code %d", status)) // as the server does
	case status < 200 && status != http.StatusSwitchingProtocols:
		r.ResponseWriter.WriteHeader(status) // informational: the response follows
	default:
		r.status, r.header = status, r.Header().Clone()
		if r.header.Get("Trailer") != "" || status == http.StatusSwitchingProtocols {
			r.sendDirectly()
		}
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !r.direct.Load() && !r.kept.Load() && len(r.body)+len(p) > r.limit {
		r.sendDirectly()
	}
	if r.direct.Load() {
		return r.ResponseWriter.Write(p)
	}
	r.body = append(r.body, p...)
	return len(p), nil
}

// FlushError is called by http.ResponseController instead of Flush.
func (r *recorder) FlushError() error {
	if r.kept.Load() {
		return nil
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.sendDirectly()
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Flush sends the buffered response; later writes go to the client directly.
func (r *recorder) Flush() { _ = r.FlushError() }

// Hijack implements http.Hijacker. It returns http.ErrNotSupported after a buffered write or
// Respond.
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

// sendDirectly sends the buffered response; later writes go to the client directly.
func (r *recorder) sendDirectly() {
	if r.direct.Load() || r.kept.Load() {
		return
	}
	r.direct.Store(true)
	replace(r.Header(), r.header)
	r.ResponseWriter.WriteHeader(r.status)
	if len(r.body) > 0 {
		_, _ = r.ResponseWriter.Write(r.body) // on an error the client has left
	}
	r.body = nil
}

// response returns the buffered response with the allowed headers, as it is stored.
func (r *recorder) response(allowed []string) record {
	if _, ok := r.header["Content-Type"]; !ok && len(r.body) > 0 && r.header.Get("Content-Encoding") == "" {
		r.header.Set("Content-Type", http.DetectContentType(r.body)) // as the server does
	}
	out := record{Status: r.status, Header: map[string][][]byte{}, Body: r.body}
	for _, name := range allowed {
		for _, value := range r.header[name] {
			out.Header[name] = append(out.Header[name], []byte(value))
		}
	}
	return out
}

// storable reports whether the buffered response can be stored. After Respond the body may exceed
// the limit, since nothing is sent directly.
func (r *recorder) storable() bool {
	return len(r.body) <= r.limit && r.status != http.StatusSwitchingProtocols && !r.trailers()
}

// trailers reports whether the response has trailers, announced or not.
func (r *recorder) trailers() bool {
	for name := range r.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return r.header.Get("Trailer") != ""
}

// send sends the buffered response completely, before the middleware returns.
func (r *recorder) send() {
	if r.trailers() {
		late := r.Header().Clone()
		r.kept.Store(false)
		r.sendDirectly()
		_ = http.NewResponseController(r.ResponseWriter).Flush() // trailers need a chunked response
		maps.Copy(r.Header(), late)
		return
	}
	r.direct.Store(true)
	replace(r.Header(), r.header)
	deliver(r.ResponseWriter, r.status, r.body)
}

// replay sends a stored response instead of the handler's.
func (r *recorder) replay(stored *record, mark bool) {
	r.direct.Store(true)
	replace(r.Header(), r.outer)
	replay(r.ResponseWriter, stored, mark)
}

// refuse sends a problem instead of the handler's response.
func (r *recorder) refuse(p *problem) {
	r.direct.Store(true)
	replace(r.Header(), r.outer)
	p.send(r.ResponseWriter)
}

// replace replaces the contents of h.
func replace(h, by http.Header) {
	clear(h)
	maps.Copy(h, by)
}

// replay sends a stored response; mark sets the header Replayed.
func replay(w http.ResponseWriter, stored *record, mark bool) {
	h := w.Header()
	for name, values := range stored.Header {
		h[name] = nil
		for _, value := range values {
			h[name] = append(h[name], string(value))
		}
	}
	if _, ok := stored.Header["Content-Type"]; !ok {
		h["Content-Type"] = nil // keeps the server from detecting one
	}
	if mark {
		h.Set(Replayed, "true")
	}
	deliver(w, stored.Status, stored.Body)
}

// deliver sends a whole response and flushes it, so that the client need not wait for the handler
// to return. It ignores a Content-Length of the handler: if that were wrong, the server would cut
// the first response, but not the replay.
func deliver(w http.ResponseWriter, status int, body []byte) {
	w.Header().Del("Content-Length")
	if status != http.StatusNoContent && status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // on an error the client has left
	}
	_ = http.NewResponseController(w).Flush() // on an error the server flushes when the handler returns
}

// send sends the problem as the response.
func (p *problem) send(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.later {
		h.Set("Retry-After", "1")
	}
	body, err := json.Marshal(map[string]any{"title": title(p.status), "status": p.status, "code": p.code, "detail": p.detail})
	if err != nil {
		panic(err) // cannot happen: strings and a number
	}
	deliver(w, p.status, body)
}

func title(status int) string {
	if text := http.StatusText(status); text != "" {
		return text
	}
	return "Request Cancelled" // 499 has no text in net/http
}

// storedHeader returns h as it is stored, without framing headers.
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
