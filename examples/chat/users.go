package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
)

const (
	cookieName   = "chat"
	cookieFor    = 30 * 24 * time.Hour
	freeCredits  = 100
	orgOfGuests  = "demo"
	answersADay  = 1000
	maxBody      = 64 << 10
	requestLimit = 30 * time.Second // for everything but streams
)

// visitor is who sent a request.
type visitor struct{ user, org string }

type visitorKey struct{}

func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// Secret is what cookies are signed with. It is made once, by whichever server comes first, and shared by all.
type Secret struct {
	Key string `json:"key"`
}

func loadSecret(ctx context.Context, rt *pawl.Runtime) ([]byte, error) {
	secret := Secrets.Scope(rt, "cookies")
	if _, err := secret.SetState(ctx, Secret{rand.Text() + rand.Text()}, pawl.IfAbsent()); err != nil && !errors.Is(err, pawl.ErrExists) {
		return nil, err
	}
	now, err := secret.State(ctx)
	return []byte(now.Key), err
}

// sign returns a cookie's value: who, since when, and a proof that it was us who said so.
func (s *server) sign(user string, at time.Time) string {
	claim := user + "." + strconv.FormatInt(at.Unix(), 36)
	return claim + "." + s.proof(claim)
}

func (s *server) proof(claim string) string {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write([]byte(claim))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// verify returns the user that a cookie's value stands for, or nothing.
func (s *server) verify(value string, now time.Time) string {
	claim, proof := cutLast(value, ".")
	if !hmac.Equal([]byte(proof), []byte(s.proof(claim))) {
		return ""
	}
	user, at := cutLast(claim, ".")
	if since, err := strconv.ParseInt(at, 36, 64); err != nil || now.Sub(time.Unix(since, 0)) > cookieFor {
		return ""
	}
	return user
}

func cutLast(s, sep string) (before, after string) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):]
	}
	return s, ""
}

// recognize returns who sent a request: whoever has a cookie of ours, and an account.
func (s *server) recognize(r *http.Request) (visitor, error) {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return visitor{}, errUnknownUser
	}
	user := s.verify(cookie.Value, time.Now())
	if user == "" {
		return visitor{}, errUnknownUser
	}
	account, err := Accounts.Scope(s.rt, user).Snapshot(r.Context())
	if err == nil && !account.Exists() {
		err = errUnknownUser
	}
	if err != nil {
		return visitor{}, err
	}
	return visitor{user, account.ReadOnly().Org}, nil
}

// welcome serves the page, with an account for whoever has none, and a fresh cookie.
func (s *server) welcome(w http.ResponseWriter, r *http.Request) error {
	me, err := s.recognize(r)
	if err == errUnknownUser {
		me = visitor{"guest-" + strings.ToLower(rand.Text()[:8]), orgOfGuests}
		_, err = Accounts.Scope(s.rt, me.user).SetState(r.Context(), Account{Org: me.org, Credits: freeCredits}, pawl.IfAbsent())
	}
	if err != nil {
		return err
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: s.sign(me.user, time.Now()), Path: "/", MaxAge: int(cookieFor.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil})
	w.Header().Set("Cache-Control", "no-store")
	http.ServeFileFS(w, r, pageFiles, "page/index.html")
	return nil
}

// known lets only those pass whom we know.
func (s *server) known(next http.Handler) http.Handler {
	return handler(func(w http.ResponseWriter, r *http.Request) error {
		me, err := s.recognize(r)
		if err != nil {
			return err
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitorKey{}, me)))
		return nil
	})
}

var errUnknownUser error = &apiError{"UNKNOWN_USER", http.StatusUnauthorized}

// limited bounds the time and the body of a request that is no stream.
func limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestLimit)
		defer cancel()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestLimit + 10*time.Second))
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// guarded wraps everything: the log, the headers that browsers heed, and no writes from other sites.
func guarded(log *slog.Logger, next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, rec := time.Now(), &recorder{ResponseWriter: w}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		defer func() {
			level := slog.LevelInfo
			if strings.HasSuffix(r.URL.Path, "/panel") || r.URL.Path == "/healthz" {
				level = slog.LevelDebug
			}
			log.Log(r.Context(), level, "request", "method", r.Method, "path", r.URL.Path, "status", rec.status, "took", time.Since(began).Round(time.Microsecond), "from", r.RemoteAddr)
		}()
		next.ServeHTTP(rec, r)
	})
}

// recorder remembers the status of a response; streams find the rest through Unwrap.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.status = cmp.Or(r.status, status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.status = cmp.Or(r.status, http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// apiError is an error of this server's own; pawl.Code and pawl.HTTPStatus know it as pawl.Coded.
type apiError struct {
	code   string
	status int
}

func (e *apiError) Error() string   { return fmt.Sprintf("%s (%d)", e.code, e.status) }
func (e *apiError) Code() string    { return e.code }
func (e *apiError) HTTPStatus() int { return e.status }
