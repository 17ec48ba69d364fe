package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/idempotency"
)

// Whatever the header says, a request runs under a key or is refused, and its repeat gets the same
// response. An accepted key means the same with and without quotes.
func FuzzHeader(f *testing.F) {
	for _, text := range []string{`a`, `"a"`, ` "a\"\\";p=1 `, `"a`, `"a" b`, `a b`, `"\x"`, `""`, "\x00", "é", strings.Repeat("k", 256)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, keys := onMemory(t, idempotency.Config{Principal: func(*http.Request) string { return "ann" }})
		runs := 0
		h := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			fmt.Fprint(w, runs)
		}))
		send := func(text string) (status int, body string) {
			r := httptest.NewRequest(http.MethodPost, "/order", nil)
			r.Header[idempotency.Header] = []string{text}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		status, first := send(text)
		if status != http.StatusOK {
			require.Equal(t, http.StatusBadRequest, status)
			require.Zero(t, runs)
			return
		}
		bare := strings.Trim(text, " \t")
		again := []string{text, bare}
		if !strings.HasPrefix(bare, `"`) {
			again = append(again, `"`+bare+`"`)
		}
		for _, text := range again {
			status, repeat := send(text)
			require.Equal(t, http.StatusOK, status, "%q", text)
			require.Equal(t, first, repeat, "%q", text)
		}
		require.Equal(t, 1, runs)
	})
}
