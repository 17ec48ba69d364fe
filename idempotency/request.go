package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pawl-go/pawl"
)

// Header is the request header with the key.
const Header = "Idempotency-Key"

// Replayed is the response header that says that a response is the first one's.
const Replayed = "Idempotent-Replayed"

// isSafe reports whether requests of this method change nothing, so that repeating them needs no key.
func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodTrace
}

// keyOf returns the key of a request, "" if it has none. A key is a string of RFC 8941, in quotes, as the draft of the IETF has it, or the bare text, as most clients send it.
func keyOf(h http.Header) (string, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", errors.New("there are several keys")
	}
	text := strings.Trim(values[0], " \t")
	key, err := text, error(nil)
	if strings.HasPrefix(text, `"`) {
		key, err = unquote(text)
	} else if i := strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`",;\`, c) }); i >= 0 {
		err = fmt.Errorf("%q cannot be in a key without quotes", text[i:i+1])
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("the key is empty")
	case len(key) > MaxKey:
		return "", fmt.Errorf("the key has more than %d characters", MaxKey)
	}
	return key, nil
}

// unquote returns the text of a string of RFC 8941. Parameters after it mean nothing here.
func unquote(text string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if rest := strings.TrimLeft(text[i+1:], " "); rest != "" && rest[0] != ';' {
				return "", errors.New("there is something after the key")
			}
			return key.String(), nil
		case c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errors.New("a backslash in the key is before something else than a quote or a backslash")
			}
			key.WriteByte(text[i])
		case c < ' ' || c > '~':
			return "", fmt.Errorf("%q cannot be in a key", string(rune(c)))
		default:
			key.WriteByte(c)
		}
	}
	return "", errors.New("the key has no closing quote")
}

// incoming is a request with a key, read to its end.
type incoming struct {
	id    string // of the record
	print string // of the payload
	body  []byte
}

// problem is an answer of the middleware's own.
type problem struct {
	status int
	code   string
	detail string
	later  bool // a repeat makes sense, in a while
}

// read reads a request to its end, before anything is claimed: a slow client holds nothing.
func (k *Keys) read(w http.ResponseWriter, r *http.Request, key string) (in incoming, p *problem) {
	principal := k.config.Principal(r)
	if principal == "" {
		return in, &problem{status: http.StatusUnauthorized, code: codeNoPrincipal, detail: "A key has to be somebody's."}
	}
	if r.Body != nil {
		var err error
		if in.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, k.config.MaxRequest)); err != nil {
			p := &problem{status: http.StatusBadRequest, code: codeBody, detail: "The request could not be read to its end."}
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				p.status, p.detail = http.StatusRequestEntityTooLarge, fmt.Sprintf("A request with a key can have %d bytes.", k.config.MaxRequest)
			}
			return in, p
		}
	}
	in.id = hash("http", principal, k.route(r), key)
	in.print = hash(r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(in.body))
	if r.PostForm != nil || r.MultipartForm != nil { // somebody was faster
		form, err := printOf(r)
		if err != nil {
			return in, &problem{status: http.StatusBadRequest, code: codeBody, detail: "The form could not be read to its end."}
		}
		in.print = hash(in.print, form)
	}
	return in, nil
}

// printOf is the hash of a form that was read before, by Config.Principal or around the middleware: of its body nothing may be left.
func printOf(r *http.Request) (string, error) {
	parts := []string{r.PostForm.Encode()}
	if r.MultipartForm != nil {
		parts = append(parts, url.Values(r.MultipartForm.Value).Encode())
		for _, name := range slices.Sorted(maps.Keys(r.MultipartForm.File)) {
			for _, h := range r.MultipartForm.File[name] {
				file, err := h.Open()
				if err != nil {
					return "", err
				}
				sum := sha256.New()
				_, err = io.Copy(sum, file)
				if err = errors.Join(err, file.Close()); err != nil {
					return "", err
				}
				parts = append(parts, name, h.Filename, string(sum.Sum(nil)))
			}
		}
	}
	return hash(parts...), nil
}

// route is what the key of r is used for.
func (k *Keys) route(r *http.Request) string {
	switch {
	case k.config.Route != nil:
		return k.config.Route(r)
	case r.Pattern != "":
		return r.Pattern
	}
	return r.Method + " " + r.URL.EscapedPath()
}

// with returns r for the handler, whose body can be read once more.
func (in incoming) with(r *http.Request) *http.Request {
	r.Body = http.NoBody
	if len(in.body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(in.body))
	}
	r.ContentLength, r.TransferEncoding = int64(len(in.body)), nil
	return r
}

// problemOf is the answer to a claim that failed.
func problemOf(err error) *problem {
	switch {
	case errors.Is(err, errReused):
		return &problem{status: http.StatusUnprocessableEntity, code: codeReused, detail: "The key was used for another request."}
	case errors.Is(err, pawl.ErrHeld):
		return &problem{status: http.StatusConflict, code: codeRunning, detail: "The first request with this key is still being processed.", later: true}
	}
	status := pawl.HTTPStatus(err)
	return &problem{status: status, code: pawl.Code(err), detail: "Nothing was done.", later: status == http.StatusServiceUnavailable || pawl.IsRetryable(err)}
}
