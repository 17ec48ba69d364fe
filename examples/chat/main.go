// Chat is an agent and chat server: sessions, credits, tools, streamed answers, and a page that
// shows them. Its state is in an SQLite file, or in another store. Kill it, double-click, open two
// tabs, or start two servers on one database: nothing is lost, doubled or stuck.
//
//	go run ./examples/chat
//	go run ./examples/chat -inspect
//	go run ./examples/chat -store dir:./data
//	go run ./examples/chat -store postgres://user:secret@localhost/chat -addr :8081
//	OPENAI_API_KEY=... go run ./examples/chat -model gpt-4o-mini
//
// Read state.go first (the documents and the stream), then turn.go (a question and its answer), tools.go (calls
// that must not happen twice), and server.go (the HTTP API).
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/pawl-go/pawl/stream"
)

// config holds the values of the flags, and the key from OPENAI_API_KEY.
type config struct {
	addr, store         string
	model, baseURL, key string
	delay               time.Duration
	lease, stopTimeout  time.Duration
	inspect             bool
}

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8080", "address to listen on; without a host: 127.0.0.1")
	flag.StringVar(&c.store, "store", "chat.db", "an SQLite file, dir:FOLDER or postgres://...; several servers may share it")
	flag.StringVar(&c.model, "model", cmp.Or(os.Getenv("CHAT_MODEL"), "local"), "local, or the name of a model at -base-url")
	flag.StringVar(&c.baseURL, "base-url", cmp.Or(os.Getenv("OPENAI_BASE_URL"), "https://api.openai.com/v1"),
		"base URL of an OpenAI-compatible service; its key comes from OPENAI_API_KEY")
	flag.DurationVar(&c.delay, "delay", 40*time.Millisecond, "delay between two words of the local model")
	flag.DurationVar(&c.lease, "lease", 5*time.Second, "length of a lease: how long another server waits before it resumes the work of a dead one")
	flag.DurationVar(&c.stopTimeout, "stop-timeout", 20*time.Second,
		"time for answers in progress at shutdown; another server resumes the rest")
	flag.BoolVar(&c.inspect, "inspect", false, "show the documents and queues of the server at /pawl/, to browsers on this machine")
	flag.Parse()
	c.key = os.Getenv("OPENAI_API_KEY")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, c config, log *slog.Logger) (err error) {
	host, port, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return err
	}
	defer listener.Close()
	s, end, err := open(ctx, c, log)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	fmt.Printf("http://%s\n", listener.Addr())
	log.Info("serving", "pid", os.Getpid(), "model", c.model)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.stopTimeout)
	defer cancel()
	s.hangUp() // Shutdown would wait for the streams
	return errors.Join(err, shutdown(stopCtx, srv), end(stopCtx))
}

// drainFor is the time for requests in progress at shutdown. A client whose response did not come
// repeats its request under the same key.
const drainFor = 3 * time.Second

// shutdown stops srv. After drainFor it closes the remaining connections: a client that has sent
// half of its request must not hold up the shutdown until ReadTimeout.
func shutdown(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	if err := srv.Shutdown(ctx); err == nil || ctx.Err() == nil {
		return err
	}
	return srv.Close()
}

// open opens a server. The function end closes it: it waits for answers in progress until its
// context ends. Turns that are still open then are resumed by another server.
func open(ctx context.Context, c config, log *slog.Logger) (_ *server, _ func(context.Context) error, err error) {
	s := &server{log: log, stats: &stats{}, model: local{c.delay}, toolDelay: 10 * c.delay, lease: c.lease, inspect: c.inspect}
	s.quit, s.hangUp = context.WithCancel(context.WithoutCancel(ctx))
	var opened []func(context.Context) error // called in reverse order
	end := func(ctx context.Context) (err error) {
		s.hangUp()
		if s.chat != nil && s.chat.Stop(ctx) != nil {
			log.Info("open turns are left to another server")
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, stop := range slices.Backward(opened) {
			err = errors.Join(err, stop(last))
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end(context.WithoutCancel(ctx)))
		}
	}()

	store, err := openStore(ctx, c.store)
	if err != nil {
		return nil, nil, err
	}
	opened = append(opened, func(context.Context) error { return store.Close() })

	if c.model != "local" {
		service, err := newOpenAI(c.baseURL, c.key, c.model)
		if err != nil {
			return nil, nil, err
		}
		s.model = service
		opened = append(opened, func(context.Context) error { service.client.CloseIdleConnections(); return nil })
	}
	if s.rt, err = pawl.Open(pawl.Config{Store: store, Kinds: kinds, Observer: s.stats, Logger: log}); err != nil {
		return nil, nil, err
	}
	opened = append(opened, s.rt.Close)
	if s.threads, err = stream.New(s.rt, threads); err != nil {
		return nil, nil, err
	}
	if s.secret, err = loadSecret(ctx, s.rt); err != nil {
		return nil, nil, err
	}
	if _, err = Orgs.Scope(s.rt, orgOfGuests).SetState(ctx, Limits{PerDay: answersADay}, pawl.IfAbsent()); err != nil && !errors.Is(err, pawl.ErrExists) {
		return nil, nil, err
	}
	sweeper, err := pawl.NewSweeper(s.rt, pawl.SweeperConfig{}) // removes expired documents
	if err != nil {
		return nil, nil, err
	}

	s.keys, err = idempotency.New(s.rt, idempotency.Config{
		Principal: func(r *http.Request) string { return visitorOf(r).user }, Require: true,
		Lease: c.lease, Wait: 2 * c.lease, TTL: cookieFor,
		Keep: func(status int) bool { // a retry with the same key may succeed after 409, 429 and 5xx
			return status < 500 && status != http.StatusConflict && status != http.StatusTooManyRequests
		},
	})
	if err != nil {
		return nil, nil, err
	}
	// Concurrent messages of a session are answered in order, in any process.
	if s.chat, err = flow.New(s.rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession, Lease: c.lease, Logger: log}); err != nil {
		return nil, nil, err
	}
	s.serve, s.answer = flow.Define(s.chat, "serve", s.doServe), flow.Define(s.chat, "answer", s.doAnswer)
	if s.bench, err = flow.New(s.rt, flow.Config{Kind: "contest", Admit: flow.Reject, Per: flow.PerFlow, Lease: c.lease, Logger: log}); err != nil {
		return nil, nil, err
	}
	s.contend = flow.Define(s.bench, "contend", s.doContend)
	engine := machine.NewEngine(s.rt, machine.Config{Lease: c.lease, Logger: log})
	s.addMachines(engine)

	life := context.WithoutCancel(ctx) // Stop ends the sweeper and the engine, not ctx
	opened = append(opened, sweeper.Stop, engine.Stop, s.bench.Stop, s.chat.Stop)
	if err = errors.Join(sweeper.Start(life), engine.Start(life)); err != nil {
		return nil, nil, err
	}
	resumed := make(chan struct{})
	go func() { defer close(resumed); s.resume(s.quit) }()
	opened = append(opened, func(context.Context) error { <-resumed; return nil })
	return s, end, nil
}

// openStore opens the store at a location.
func openStore(ctx context.Context, location string) (persist.Store, error) {
	if folder, ok := strings.CutPrefix(location, "dir:"); ok {
		return fs.Open(ctx, folder, fs.Config{})
	}
	if strings.HasPrefix(location, "postgres://") || strings.HasPrefix(location, "postgresql://") {
		return postgres.Open(ctx, location, postgres.Config{})
	}
	return sqlite.Open(ctx, location, sqlite.Config{})
}
