// Chat is the server of examples/chat with metrics for Prometheus. It has the flags of that program,
// and -metrics, the address at which Prometheus finds /metrics.
//
//	go run ./otel/chat
//	curl http://127.0.0.1:9464/metrics
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pawl-go/pawl/examples/chat/server"
	"github.com/pawl-go/pawl/otel"
)

func main() {
	c := server.Command{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	c.Flags(flag.CommandLine)
	metrics := flag.String("metrics", "127.0.0.1:9464", "address of /metrics; without a host: 127.0.0.1")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, *metrics); err != nil {
		log.Fatal(err)
	}
}

// run serves the chat, and its metrics at another address, until ctx ends.
func run(ctx context.Context, c server.Command, address string) (err error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return err
	}
	meters := sdk.NewMeterProvider(sdk.WithReader(reader))
	defer func() { err = errors.Join(err, meters.Shutdown(context.WithoutCancel(ctx))) }()
	if c.Observer, err = otel.New(otel.Config{Meters: meters}); err != nil {
		return err
	}

	listener, err := server.Listen(address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	defer func() {
		_ = srv.Close()
		if failure := <-served; !errors.Is(failure, http.ErrServerClosed) {
			err = errors.Join(err, failure)
		}
	}()
	fmt.Printf("metrics: http://%s/metrics\n", listener.Addr())
	return c.Run(ctx)
}
