package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// check reports what is wrong with a webhook without reading its files.
func (w WebhookConfig) check() error {
	name := "webhooks." + w.Name
	errs := []error{
		required("webhooks.name", w.Name),
		exactlyOne(name, choice{"url", w.URL != ""}, choice{"url_file", w.URLFile != ""}),
		w.ReachConfig.check(name),
	}
	for _, prefix := range w.Within {
		if _, err := spiffeid.FromString(prefix); err != nil {
			errs = append(errs, fmt.Errorf("%s.within: %q is not a SPIFFE ID: %w", name, prefix, err))
		}
	}
	return errors.Join(errs...)
}

// spec reads the files of a webhook.
func (w WebhookConfig) spec() (webhook.Spec, error) {
	target, err := w.target(w.URL)
	if err != nil {
		return webhook.Spec{}, err
	}
	s := webhook.Spec{Name: w.Name, Target: target, Format: w.Format, Within: w.Within}
	if len(s.Within) == 0 {
		s.Within = []string{people.Everywhere}
	}
	for _, event := range w.Events {
		s.Events = append(s.Events, broker.NoticeKind(event))
	}
	for _, file := range []struct {
		key, path string
		to        *secret.Text
	}{{"url_file", w.URLFile, &s.URL}, {"secret_file", w.SecretFile, &s.Secret}} {
		if file.path == "" {
			continue
		}
		text, err := readSecretFile(file.path)
		if err != nil {
			return s, fmt.Errorf("%s: %w", file.key, err)
		}
		*file.to = secret.New(text)
	}
	return s, nil
}

// tellOthers runs the configured webhooks. Without any, it does not use the database.
func (s *service) tellOthers(ctx context.Context, cfg Config) error {
	if len(cfg.Webhooks) == 0 {
		return nil
	}
	var specs []webhook.Spec
	for _, w := range cfg.Webhooks {
		spec, err := w.spec()
		if err != nil {
			return fmt.Errorf("webhooks.%s.%w", w.Name, err)
		}
		specs = append(specs, spec)
	}
	databaseURL, err := readSecretFile(cfg.Postgres.URLFile)
	if err != nil {
		return fmt.Errorf("postgres.url_file: %w", err)
	}
	outbox, err := ledger.OpenOutbox(ctx, ledger.Config{URL: databaseURL, Log: s.log, Tracer: queryTracer()})
	if err != nil {
		return fmt.Errorf("opening the outbox with the URL in %s (postgres.url_file): %w", cfg.Postgres.URLFile, err)
	}
	s.onClose(outbox.Close)
	courier, err := webhook.New(webhook.Config{
		Webhooks: specs, Outbox: outbox, Link: cfg.Issuer + "/v1/approvals/{id}", Now: time.Now, Log: s.log,
	})
	if err != nil {
		return err
	}
	s.tasks.Go(func() error { return ended(ctx, courier.Run(ctx)) })
	return nil
}
