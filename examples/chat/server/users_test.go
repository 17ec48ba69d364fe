package server

import (
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Only a cookie signed by the server identifies a user, and only until it expires.
func TestCookies(t *testing.T) {
	location := filepath.Join(t.TempDir(), "chat.db")
	s, beside := start(t, location), start(t, location)
	now := time.Now()
	good := s.sign("guest-a.b", now)
	require.Equal(t, "guest-a.b", s.verify(good, now))
	require.Equal(t, "guest-a.b", beside.verify(good, now), "servers of one store share the secret")
	require.Empty(t, s.verify(good, now.Add(cookieFor+time.Second)))
	require.Empty(t, start(t, filepath.Join(t.TempDir(), "chat.db")).verify(good, now))
	for i := range good {
		forged := []byte(good)
		if forged[i] ^= 1; s.verify(string(forged), now) != "" && i < len(good)-1 { // the last letter has unused bits
			t.Errorf("%s passes", forged)
		}
	}
	for _, bad := range []string{"", ".", "..", "guest-a", "guest-a." + s.proof("guest-a"), strings.TrimSuffix(good, good[len(good)-43:])} {
		require.Empty(t, s.verify(bad, now), bad)
	}

	u := visit(t, s.url)
	at, err := url.Parse(s.url)
	require.NoError(t, err)
	cookie := u.client.Jar.Cookies(at)[0]
	anonymous := &user{t, &http.Client{Transport: u.client.Transport}}
	for _, value := range []string{"", "guest-x", cookie.Value + "x", s.sign("guest-unknown", now)} {
		status, body, _ := anonymous.call("GET", s.url+"/api/me", "", "Cookie", cookieName+"="+value)
		require.Equal(t, http.StatusUnauthorized, status, value)
		require.JSONEq(t, `{"code":"UNKNOWN_USER"}`, body)
	}
	status, _, header := anonymous.call("GET", s.url+"/", "")
	require.Equal(t, http.StatusOK, status)
	set := header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		require.Contains(t, set, want)
	}
	before := get[me](u, s.url+"/api/me").User
	_, _, _ = u.call("GET", s.url+"/", "")
	require.Equal(t, before, get[me](u, s.url+"/api/me").User, "a known user must stay the same")
	require.NoError(t, Accounts.Scope(s.rt, before).Delete(t.Context()))
	_, _, _ = u.call("GET", s.url+"/", "")
	require.NotEqual(t, before, get[me](u, s.url+"/api/me").User, "a cookie without an account must not count")
}

// The sessions and turns of a user do not exist for other users.
func TestOtherUsersSeeNothing(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"), func(c *Config) { c.Delay = 20 * time.Millisecond })
	u, other := visit(t, s.url), visit(t, s.url)
	session := u.newSession(s.url)
	turn := u.ask(s.url, session, "count to 10000")
	for _, try := range [][3]string{
		{"GET", "/api/sessions/" + session + "/messages", ""},
		{"POST", "/api/sessions/" + session + "/messages", `{"text":"hello"}`},
		{"PATCH", "/api/sessions/" + session, `{"title":"mine"}`},
		{"GET", "/api/sessions/" + session + "/events", ""},
		{"GET", "/api/sessions/" + session + "/panel", ""},
		{"GET", "/api/turns/" + turn + "/events", ""},
		{"DELETE", "/api/turns/" + turn, ""},
		{"GET", "/api/turns/none/events", ""},
		{"GET", "/api/sessions/none/events", ""},
	} {
		status, body, _ := other.call(try[0], s.url+try[1], try[2])
		require.Equal(t, http.StatusNotFound, status, "%v: %s", try, body)
		require.NotContains(t, body, "count to")
	}
	require.Empty(t, get[[]sessionView](other, s.url+"/api/sessions"))
	status, _, _ := u.call("DELETE", s.url+"/api/turns/"+turn, "")
	require.Equal(t, http.StatusNoContent, status)
	require.Equal(t, stopped, u.settled(s.url, session).Messages[1].Status)
	require.EqualValues(t, freeCredits, get[me](other, s.url+"/api/me").Credits)
}

// A request that is too large, malformed or from another site is refused. Every response has the
// security headers.
func TestLimits(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	session := u.newSession(s.url)
	messages := s.url + "/api/sessions/" + session + "/messages"
	for _, try := range []struct {
		status int
		body   string
		header []string
	}{
		{http.StatusRequestEntityTooLarge, `{"text":"` + strings.Repeat("x", maxBody) + `"}`, nil},
		{http.StatusBadRequest, `{"text":"` + strings.Repeat("x", 8001) + `"}`, nil},
		{http.StatusBadRequest, `{"text":"  "}`, nil},
		{http.StatusBadRequest, `hello`, nil},
		{http.StatusBadRequest, `{"text":"hello"}`, []string{"Idempotency-Key", ""}},
		{http.StatusForbidden, `{"text":"hello"}`, []string{"Sec-Fetch-Site", "cross-site"}},
		{http.StatusForbidden, `{"text":"hello"}`, []string{"Origin", "http://elsewhere.example"}},
	} {
		status, body, header := u.call("POST", messages, try.body, try.header...)
		require.Equal(t, try.status, status, "%.40s %v: %s", try.body, try.header, body)
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
		require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'")
		require.Contains(t, header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	}
	require.Empty(t, u.settled(s.url, session).Messages)
	status, body, _ := u.call("PUT", s.url+"/api/settings/anything", `{"value":"x"}`)
	require.Equal(t, http.StatusBadRequest, status, body)

	status, body, _ = u.call("GET", s.url+"/healthz", "")
	require.Equal(t, http.StatusOK, status, body)
	require.NoError(t, s.rt.Store().Close())
	status, body, _ = u.call("GET", s.url+"/healthz", "")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
}
