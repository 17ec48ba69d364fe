package server

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
	requestLimit = 30 * time.Second // the time limit of all requests but streams
)

// visitor is the user who sent a request, and the user's organisation.
type visitor struct{ user, org string }

type visitorKey struct{}

func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// Secret signs cookies. The first server creates it, and all servers of a store share it.
type Secret struct {
	Key string `json:"key"`
}

// loadSecret returns the secret, and creates it if there is none.
func loadSecret(ctx context.Context, rt *pawl.Runtime) ([]byte, error) {
	secret := Secrets.Scope(rt, "cookies")
	if _, err := secret.SetState(ctx, Secret{rand.Text() + rand.Text()}, pawl.IfAbsent()); err != nil && !errors.Is(err, pawl.ErrExists) {
		return nil, err
	}
	now, err := secret.State(ctx)
	return []byte(now.Key), err
}

// sign returns the value of a cookie: the user, the time, and a signature of both.
func (s *Server) sign(user string, at time.Time) string {
	claim := user + "." + strconv.FormatInt(at.Unix(), 36)
	return claim + "." + s.proof(claim)
}

// proof returns the signature of a claim.
func (s *Server) proof(claim string) string {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write([]byte(claim))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// verify returns the user of a cookie's value, or "" if the value is not valid.
func (s *Server) verify(value string, now time.Time) string {
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

// cutLast slices s around the last sep.
func cutLast(s, sep string) (before, after string) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):]
	}
	return s, ""
}

// recognize returns the visitor of a request. It returns errUnknownUser without a valid cookie or
// without an account.
func (s *Server) recognize(r *http.Request) (visitor, error) {
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

// welcome serves the page and a new cookie. It creates an account for a new visitor.
func (s *Server) welcome(w http.ResponseWriter, r *http.Request) error {
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

// known passes requests of recognised visitors to next.
func (s *Server) known(next http.Handler) http.Handler {
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

// limited limits the time and the body of a request.
func limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestLimit)
		defer cancel()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestLimit + 10*time.Second))
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// guarded wraps all handlers: it logs requests, sets security headers, and refuses cross-origin
// writes.
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

// recorder records the status of a response. Unwrap gives access to the original writer.
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

// apiError is an error of this server. It implements pawl.Coded, for pawl.Code and pawl.HTTPStatus.
type apiError struct {
	code   string
	status int
}

func (e *apiError) Error() string   { return fmt.Sprintf("%s (%d)", e.code, e.status) }
func (e *apiError) Code() string    { return e.code }
func (e *apiError) HTTPStatus() int { return e.status }
