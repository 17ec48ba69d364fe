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

// Header is the name of the request header that holds the key.
const Header = "Idempotency-Key"

// Replayed is the name of the response header that marks a stored response.
const Replayed = "Idempotent-Replayed"

// isSafe reports whether requests with this method change nothing, so that a repeat needs no key.
func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodTrace
}

// keyOf returns the key of a request; "": it has none. A key is a quoted string of RFC 8941, as the
// IETF draft says, or the bare text, as most clients send it.
func keyOf(h http.Header) (string, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", errors.New("more than one key")
	}
	text := strings.Trim(values[0], " \t")
	key, err := text, error(nil)
	if strings.HasPrefix(text, `"`) {
		key, err = unquote(text)
	} else if i := strings.IndexFunc(text, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`",;\`, c) }); i >= 0 {
		err = fmt.Errorf("%q is not allowed in a key without quotes", text[i:i+1])
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("key is empty")
	case len(key) > MaxKey:
		return "", fmt.Errorf("key has %d characters, limit %d", len(key), MaxKey)
	}
	return key, nil
}

// unquote returns the text of a quoted string of RFC 8941. Parameters after it are ignored.
func unquote(text string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if rest := strings.TrimLeft(text[i+1:], " "); rest != "" && rest[0] != ';' {
				return "", errors.New("trailing data after the key")
			}
			return key.String(), nil
		case c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errors.New("backslash in the key is not followed by a quote or a backslash")
			}
			key.WriteByte(text[i])
		case c < ' ' || c > '~':
			return "", fmt.Errorf("%q is not allowed in a key", string(rune(c)))
		default:
			key.WriteByte(c)
		}
	}
	return "", errors.New("key has no closing quote")
}

// incoming is a request with a key whose body has been read.
type incoming struct {
	id          string // of the record
	fingerprint string // of the payload
	body        []byte
}

// problem is a response that the middleware makes itself.
type problem struct {
	status int
	code   string
	detail string
	later  bool // a repeat may succeed later: send Retry-After
}

// read reads a request completely. It is called before the claim, so that a slow client holds no
// lease.
func (k *Keys) read(w http.ResponseWriter, r *http.Request, key string) (in incoming, p *problem) {
	principal := k.config.Principal(r)
	if principal == "" {
		return in, &problem{status: http.StatusUnauthorized, code: codeNoPrincipal, detail: "The request has a key and no principal."}
	}
	if r.Body != nil {
		var err error
		if in.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, k.config.MaxRequest)); err != nil {
			p := &problem{status: http.StatusBadRequest, code: codeBody, detail: "The request body could not be read."}
			if over, ok := errors.AsType[*http.MaxBytesError](err); ok { // of Config.MaxRequest, or of an outer handler
				p.status, p.detail = http.StatusRequestEntityTooLarge, fmt.Sprintf("A request with a key must not exceed %d bytes.", over.Limit)
			}
			return in, p
		}
	}
	in.id = recordID("http", principal, k.route(r), key)
	in.fingerprint = hash(r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(in.body))
	if r.PostForm != nil || r.MultipartForm != nil { // the body was parsed before the middleware
		form, err := hashForm(r)
		if err != nil {
			return in, &problem{status: http.StatusBadRequest, code: codeBody, detail: "The form could not be read."}
		}
		in.fingerprint = hash(in.fingerprint, form)
	}
	return in, nil
}

// hashForm returns the hash of a form that Config.Principal or an outer handler has parsed. The
// body of such a request may be empty.
func hashForm(r *http.Request) (string, error) {
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

// route returns the operation that the key of r is used for.
func (k *Keys) route(r *http.Request) string {
	switch {
	case k.config.Route != nil:
		return k.config.Route(r)
	case r.Pattern != "":
		return r.Pattern
	}
	return r.Method + " " + r.URL.EscapedPath()
}

// with returns r for the handler, with a body that can be read again.
func (in incoming) with(r *http.Request) *http.Request {
	r.Body = http.NoBody
	if len(in.body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(in.body))
	}
	r.ContentLength, r.TransferEncoding = int64(len(in.body)), nil
	return r
}

// problemOf returns the response to a claim that failed with err.
func problemOf(err error) *problem {
	switch {
	case errors.Is(err, errReused):
		return &problem{status: http.StatusUnprocessableEntity, code: codeReused, detail: "The key was used for another request."}
	case errors.Is(err, pawl.ErrHeld):
		return &problem{status: http.StatusConflict, code: codeRunning, detail: "The first request with this key is still being processed.", later: true}
	case errors.Is(err, pawl.ErrLeaseLost): // before the handler started
		return &problem{status: http.StatusServiceUnavailable, code: pawl.Code(err), detail: "Nothing was done.", later: true}
	}
	status := pawl.HTTPStatus(err)
	return &problem{status: status, code: pawl.Code(err), detail: "Nothing was done.", later: status == http.StatusServiceUnavailable || pawl.IsRetryable(err)}
}
