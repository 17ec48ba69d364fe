package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	library "github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/machine"
	runs "github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/open"
	"github.com/pawl-go/pawl/stream"
)

// inspectFor is the time for requests in progress after an interrupt.
const inspectFor = 2 * time.Second

func (a *app) inspectCommand() *cobra.Command {
	var o inspectOptions
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show a store in a browser on this machine",
		Long: `Serve the pages of package inspect for a store, at rest or in use, until
interrupted. The URL is printed; it contains a secret, and works on this machine
only. Nothing can be changed without --allow-actions.

The documents of all kinds are shown as they are stored, and runs, batches,
calls, after-effects, streams, reactions and idempotency keys in their own words.
The kinds are those that the store has at the start. The exit code after an
interrupt is 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.port < 0 || o.port > 65535 {
				return misused("--port must be between 0 and 65535, got %d", o.port)
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error { return a.inspect(cmd.Context(), store, o) })
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.port, "port", 0, "port to listen on (0: any that is free)")
	flags.BoolVar(&o.actions, "allow-actions", false, "allow to cancel, retry, unblock, reset, redeliver, and release leases")
	flags.StringArrayVar(&o.claims, "claims", nil, "show the claims on entities of this kind; repeat it for others")
	return cmd
}

// inspectOptions are the flags of the command.
type inspectOptions struct {
	port    int
	actions bool
	claims  []string
}

// inspect serves the pages until ctx ends.
func (a *app) inspect(ctx context.Context, store persist.Store, o inspectOptions) (err error) {
	log := slog.New(slog.NewTextHandler(a.errOut, nil))
	rt, err := library.Open(library.Config{Store: store, Logger: log})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), inspectFor)
		defer cancel()
		err = errors.Join(err, rt.Close(last))
	}()
	c, err := a.inspectConfig(ctx, rt, o)
	if err != nil {
		return err
	}
	c.Logger = log
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return negative("cannot listen: %w", err)
	}
	defer listener.Close()
	token := rand.Text()
	serving, hangUp := context.WithCancel(context.WithoutCancel(ctx)) // live views end with it
	defer hangUp()
	server := &http.Server{
		Handler:           guarded(inspect.New(rt, c), listener.Addr().(*net.TCPAddr).Port, token),
		BaseContext:       func(net.Listener) context.Context { return serving },
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	url := fmt.Sprintf("http://%s/%s/", listener.Addr(), token)
	if a.out.json {
		err = a.out.value(map[string]string{"url": url})
	} else {
		err = a.out.printf("%s\n", url)
	}
	if err = errors.Join(err, a.out.flush()); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return negative("cannot serve: %w", err)
	case <-ctx.Done():
	}
	hangUp()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), inspectFor)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close() // of a client that has sent half of a request
	}
	<-served
	return nil
}

// guarded lets requests through that name this machine and the secret. A page of another site may
// lead its own name to this machine, so the name is tested; it cannot know the secret.
func guarded(pages http.Handler, port int, token string) http.Handler {
	hosts := map[string]bool{fmt.Sprintf("127.0.0.1:%d", port): true, fmt.Sprintf("localhost:%d", port): true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case !hosts[r.Host]:
			http.Error(w, "not a name of this server", http.StatusMisdirectedRequest)
		case !found || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1:
			http.Error(w, "use the whole URL that pawl inspect has printed", http.StatusNotFound)
		default:
			pages.ServeHTTP(w, r)
		}
	})
}

// inspectConfig returns the views of the layers that have documents in the store, without types of the
// user. Kinds of layers are told by their names.
func (a *app) inspectConfig(ctx context.Context, rt *library.Runtime, o inspectOptions) (inspect.Config, error) {
	c := inspect.Config{
		Title: open.Redacted(a.location),
		Views: []inspect.View{inspect.Runs(runs.NewEngine(rt, runs.Config{}))},
	}
	kinds, err := describe(ctx, rt.Store())
	switch {
	case ctx.Err() != nil:
		return c, ctx.Err()
	case err != nil: // it counts all records, which may take too long
		fmt.Fprintf(a.errOut, "pawl: kinds are not listed: %s\n", message(err))
	}
	for _, k := range kinds.Kinds {
		if persist.IsLogKind(k.Kind) {
			continue
		}
		c.Kinds = append(c.Kinds, k.Kind)
		views, err := viewsOf(ctx, rt, k.Kind)
		if err != nil {
			return c, err
		}
		c.Views = append(c.Views, views...)
	}
	for _, kind := range o.claims {
		c.Views = append(c.Views, inspect.Claims(kind, machine.Workflow{}))
	}
	c.Views = append(c.Views, inspect.Undelivered(machine.NewEngine(rt, machine.Config{})), inspect.Idempotency())
	c.Views = distinct(c.Views)
	if o.actions {
		allow(&c)
	}
	return c, nil
}

// distinct returns the first view of each name.
func distinct(views []inspect.View) (out []inspect.View) {
	seen := make(map[string]bool)
	for _, v := range views {
		if !seen[v.Name] {
			seen[v.Name] = true
			out = append(out, v)
		}
	}
	return out
}

// allow allows all actions of the views, and the release of leases, in the name of the user.
func allow(c *inspect.Config) {
	name := "the user of pawl inspect"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	c.Author = func(*http.Request) string { return name }
	c.Actions = []string{inspect.ActRelease}
	for _, v := range c.Views {
		for _, action := range v.Actions {
			c.Actions = append(c.Actions, action.Name)
		}
	}
}

// viewsOf returns the views of a kind that a layer keeps its documents in, none for other kinds.
func viewsOf(ctx context.Context, rt *library.Runtime, kind string) ([]inspect.View, error) {
	if name, ok := strings.CutPrefix(kind, "batch."); ok && !strings.HasSuffix(name, ".item") {
		return []inspect.View{inspect.Batches[json.RawMessage, json.RawMessage](name, nil)}, nil
	}
	if rest, ok := strings.CutPrefix(kind, "flow."); ok {
		i := strings.LastIndex(rest, ".")
		if i <= 0 {
			return nil, nil
		}
		name, part := rest[:i], rest[i+1:]
		if part == "call" {
			f, err := flow.New(rt, flow.Config{Kind: name, Admit: flow.Queue})
			if err != nil {
				f = nil // not a flow: a name that a flow cannot have
			}
			return []inspect.View{inspect.Calls(name, f)}, nil
		}
		for _, per := range []flow.Unit{flow.PerSession, flow.PerUser, flow.PerFlow} {
			if v := inspect.Gates(name, per); v.Query.Kind == kind {
				v.Name, v.Title = v.Name+"-"+part, v.Title+", per "+part
				return []inspect.View{v}, nil
			}
		}
		return nil, nil
	}
	if name, ok := strings.CutSuffix(kind, ".position"); ok && name != "" {
		log, err := stream.New(rt, stream.Config{Name: name})
		if err != nil {
			return nil, err
		}
		return []inspect.View{inspect.Streams(name), inspect.Reactions(name, log)}, nil
	}
	streams, err := holdsStreams(ctx, rt.Store(), kind)
	if err != nil || !streams {
		return nil, err
	}
	return []inspect.View{inspect.Streams(kind)}, nil
}

// holdsStreams reports whether the first document of a kind is the head of a stream.
func holdsStreams(ctx context.Context, store persist.Store, kind string) (bool, error) {
	page, err := store.List(ctx, persist.Query{Kind: kind, Limit: 1})
	if err != nil || len(page.Records) == 0 {
		return false, err
	}
	var head struct {
		Life *string `json:"life"`
		Next *int64  `json:"next"`
	}
	return json.Unmarshal(page.Records[0].Doc, &head) == nil && head.Life != nil && head.Next != nil, nil
}
