package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// Config configures a Server.
type Config struct {
	// Store holds the state. The caller opens it, and closes it after the server. Servers that share
	// a store, in any process, are one site.
	Store persist.Store
	// Observer gets the events of the server's runtime. Nil: none.
	Observer pawl.Observer
	// Model answers questions. Nil: a small model without a network. Close calls its method
	// CloseIdleConnections, if it has one.
	Model Model
	// Delay is the time between two words of the model without a network. The outside services that
	// this package simulates take ten times as long.
	Delay time.Duration
	// Lease is the length of leases: how long another server waits before it resumes the work of a
	// dead one. 0: 5 seconds.
	Lease time.Duration
	// Inspect serves the documents and queues of the server at /pawl/, to browsers on this machine.
	Inspect bool
	// Logger gets requests and failures. Nil: slog.Default().
	Logger *slog.Logger
}

// New opens a server, which works on open turns at once. It returns the errors of the store, and
// pawl.ErrNoStore without one. The end of ctx does not stop the server; see Close.
func New(ctx context.Context, c Config) (_ *Server, err error) {
	c.Lease, c.Logger = cmp.Or(c.Lease, 5*time.Second), cmp.Or(c.Logger, slog.Default())
	s := &Server{log: c.Logger, stats: &stats{}, model: c.Model, toolDelay: 10 * c.Delay, lease: c.Lease, inspect: c.Inspect}
	if s.model == nil {
		s.model = local{c.Delay}
	}
	s.quit, s.hangUp = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
	}()
	opened := func(stop ...func(context.Context) error) { s.opened = append(s.opened, stop...) }

	if m, ok := s.model.(interface{ CloseIdleConnections() }); ok {
		opened(func(context.Context) error { m.CloseIdleConnections(); return nil })
	}
	if s.rt, err = pawl.Open(pawl.Config{Store: c.Store, Kinds: kinds, Observer: pawl.Observers(s.stats, c.Observer), Logger: s.log}); err != nil {
		return nil, err
	}
	opened(s.rt.Close)
	if s.threads, err = stream.New(s.rt, threads); err != nil {
		return nil, err
	}
	if s.secret, err = loadSecret(ctx, s.rt); err != nil {
		return nil, err
	}
	if _, err = Orgs.Scope(s.rt, orgOfGuests).SetState(ctx, Limits{PerDay: answersADay}, pawl.IfAbsent()); err != nil && !errors.Is(err, pawl.ErrExists) {
		return nil, err
	}
	sweeper, err := pawl.NewSweeper(s.rt, pawl.SweeperConfig{}) // removes expired documents
	if err != nil {
		return nil, err
	}

	s.keys, err = idempotency.New(s.rt, idempotency.Config{
		Principal: func(r *http.Request) string { return visitorOf(r).user }, Require: true,
		Lease: c.Lease, Wait: 2 * c.Lease, TTL: cookieFor,
		Keep: func(status int) bool { // a retry with the same key may succeed after 409, 429 and 5xx
			return status < 500 && status != http.StatusConflict && status != http.StatusTooManyRequests
		},
	})
	if err != nil {
		return nil, err
	}
	// Concurrent messages of a session are answered in order, in any process.
	if s.chat, err = flow.New(s.rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession, Lease: c.Lease, Logger: s.log}); err != nil {
		return nil, err
	}
	s.serve, s.answer = flow.Define(s.chat, "serve", s.doServe), flow.Define(s.chat, "answer", s.doAnswer)
	if s.bench, err = flow.New(s.rt, flow.Config{Kind: "contest", Admit: flow.Reject, Per: flow.PerFlow, Lease: c.Lease, Logger: s.log}); err != nil {
		return nil, err
	}
	s.contend = flow.Define(s.bench, "contend", s.doContend)
	engine := machine.NewEngine(s.rt, machine.Config{Lease: c.Lease, Logger: s.log})
	s.addMachines(engine)
	s.workers = []inspect.Workers{sweeper, engine}

	life := context.WithoutCancel(ctx) // Stop ends the sweeper and the engine, not ctx
	opened(sweeper.Stop, engine.Stop, s.bench.Stop, s.chat.Stop)
	if err = errors.Join(sweeper.Start(life), engine.Start(life)); err != nil {
		return nil, err
	}
	resumed := make(chan struct{})
	go func() { defer close(resumed); s.resume(s.quit) }()
	opened(func(context.Context) error { <-resumed; return nil })
	return s, nil
}

// EndStreams ends the streams of events, which never end by themselves. Call it before
// http.Server.Shutdown, which waits for them.
func (s *Server) EndStreams() { s.hangUp() }

// Close stops the server. It waits for answers in progress until ctx ends; turns that are still open
// then are resumed by another server. It returns the errors of the parts of the server, joined. The
// store stays open.
func (s *Server) Close(ctx context.Context) (err error) {
	s.EndStreams()
	if s.chat != nil && s.chat.Stop(ctx) != nil {
		s.log.Info("open turns are left to another server")
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, stop := range slices.Backward(s.opened) {
		err = errors.Join(err, stop(last))
	}
	return err
}
