package server

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/inspect"
)

// inspector serves the pages of package inspect, read-only, to browsers on this machine. It takes the
// requests of a proxy on this machine for those of a browser. A server with users of its own would ask
// for an administrator here.
func (s *Server) inspector() http.Handler {
	pages := inspect.New(s.rt, inspect.Config{
		Title: "Chat, inside",
		Views: []inspect.View{
			inspect.Calls("chat", nil), inspect.Gates("chat", flow.PerSession), inspect.Claims(Charges.Name, chargeWorkflow),
			inspect.Undelivered(nil), inspect.Streams(threads.Name), inspect.Idempotency(),
		},
		Workers: s.workers,
		Redact:  func(key pawl.Key, _ pawl.Field, _ any) (any, bool) { return "hidden", key.Kind == Secrets.Name },
		Logger:  s.log,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.RemoteAddr) || !isLocal(r.Host) { // a name of another site may lead here
			http.NotFound(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.quit, cancel)()
		pages.ServeHTTP(w, r.WithContext(ctx))
	})
}

// isLocal reports whether an address, with or without a port, is one of this machine only.
func isLocal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
