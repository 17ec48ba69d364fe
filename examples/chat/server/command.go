package server

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/open"
)

// Command is a program that serves the chat: examples/chat is one, and a program that adds an
// observer or a kind of store is another. Flags fills in the fields that users choose.
type Command struct {
	Addr        string        // as Listen takes it
	Store       string        // as -store; see Schemes
	Model       string        // a name at BaseURL; empty or "local": the model without a network
	BaseURL     string        // of an OpenAI-compatible service
	Key         string        // for that service
	Delay       time.Duration // see Config
	Lease       time.Duration // see Config
	StopTimeout time.Duration // for answers in progress at shutdown
	Inspect     bool          // see Config

	// Observer gets the events of the server's runtime. Nil: none.
	Observer pawl.Observer
	// Schemes are the kinds of stores that -store may name. Nil: those of open.Standard.
	Schemes open.Schemes
	// Logger gets requests and failures. Nil: slog.Default().
	Logger *slog.Logger
}

// Flags defines the flags of the command. The key of the model comes from OPENAI_API_KEY.
func (c *Command) Flags(flags *flag.FlagSet) {
	flags.StringVar(&c.Addr, "addr", "127.0.0.1:8080", "address to listen on; without a host: 127.0.0.1")
	flags.StringVar(&c.Store, "store", "chat.db", "an SQLite file, dir:FOLDER or postgres://...; several servers may share it")
	flags.StringVar(&c.Model, "model", cmp.Or(os.Getenv("CHAT_MODEL"), "local"), "local, or the name of a model at -base-url")
	flags.StringVar(&c.BaseURL, "base-url", cmp.Or(os.Getenv("OPENAI_BASE_URL"), "https://api.openai.com/v1"),
		"base URL of an OpenAI-compatible service; its key comes from OPENAI_API_KEY")
	flags.DurationVar(&c.Delay, "delay", 40*time.Millisecond, "delay between two words of the local model")
	flags.DurationVar(&c.Lease, "lease", 5*time.Second, "length of a lease: how long another server waits before it resumes the work of a dead one")
	flags.DurationVar(&c.StopTimeout, "stop-timeout", 20*time.Second,
		"time for answers in progress at shutdown; another server resumes the rest")
	flags.BoolVar(&c.Inspect, "inspect", false, "show the documents and queues of the server at /pawl/, to browsers on this machine; do not use it behind a proxy on this machine")
	c.Key = os.Getenv("OPENAI_API_KEY")
}

// Run serves until ctx ends, then shuts down. It prints the URL when it accepts requests. It returns
// the errors of the address, the store, the model and the shutdown.
func (c Command) Run(ctx context.Context) (err error) {
	listener, err := Listen(c.Addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	if c.Schemes == nil {
		c.Schemes = open.Standard()
	}
	store, err := c.Schemes.Open(ctx, c.Store, open.Options{Scheme: "sqlite"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	config := Config{Store: store, Observer: c.Observer, Delay: c.Delay, Lease: c.Lease, Inspect: c.Inspect, Logger: cmp.Or(c.Logger, slog.Default())}
	if c.Model != "" && c.Model != "local" {
		if config.Model, err = newOpenAI(c.BaseURL, c.Key, c.Model); err != nil {
			return err
		}
	}
	s, err := New(ctx, config)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	fmt.Printf("http://%s\n", listener.Addr())
	config.Logger.Info("serving", "pid", os.Getpid(), "model", c.Model)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.StopTimeout)
	defer cancel()
	s.EndStreams()
	return errors.Join(err, shutdown(stopCtx, srv), s.Close(stopCtx))
}

// Listen listens on a TCP address; without a host, on 127.0.0.1. It returns an error if the address
// has no port, or is in use.
func Listen(address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
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
