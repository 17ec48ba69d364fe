package otel_test

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/otel"
)

// The metrics of a runtime, as Prometheus reads them.
func Example() {
	ctx := context.Background()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		fmt.Println(err)
		return
	}
	meters := sdk.NewMeterProvider(sdk.WithReader(reader))
	defer meters.Shutdown(ctx)
	observer, err := otel.New(otel.Config{Meters: meters})
	if err != nil {
		fmt.Println(err)
		return
	}
	rt, err := pawl.Open(pawl.Config{Observer: observer})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rt.Close(ctx)

	visits := pawl.Memory[struct {
		N int `json:"n"`
	}](rt, "visits")
	for range 3 {
		if _, err := visits.IncState(ctx, "n", 1); err != nil {
			fmt.Println(err)
			return
		}
	}

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()
	answer, err := server.Client().Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "pawl_mutations") {
			fmt.Print(line)
		}
	}
	// Output:
	// pawl_mutations_total{kind="memory",outcome="committed",path="lock",verb="Inc"} 3
}
