package app

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/notify/witness"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/exaring/otelpgx"
)

// openWebhooks runs the configured webhooks. Without any, it does not use the database.
func (s *service) openWebhooks(ctx context.Context) error {
	if len(s.cfg.Webhooks) == 0 {
		return nil
	}
	var specs []webhook.Spec
	for _, w := range s.cfg.Webhooks {
		spec, err := w.spec()
		if err != nil {
			return fmt.Errorf("webhooks.%s.%w", w.Name, err)
		}
		specs = append(specs, spec)
	}
	databaseURL, err := s.cfg.Postgres.readURL("postgres.url_file", s.cfg.Postgres.URLFile)
	if err != nil {
		return err
	}
	outbox, err := ledger.OpenOutbox(ctx, ledger.Config{
		URL: databaseURL.Reveal(), URLOptions: s.cfg.Postgres.urlOptions(), Log: s.Log, Tracer: otelpgx.NewTracer(),
	})
	if err != nil {
		return fmt.Errorf("opening the outbox with the URL in %s (postgres.url_file): %w", s.cfg.Postgres.URLFile, err)
	}
	s.onClose(outbox.Close)
	courier, err := webhook.New(webhook.Config{
		Webhooks: specs, Outbox: outbox, Link: s.cfg.Issuer + "/v1/approvals/{id}", Now: s.Now, Log: s.Log,
	})
	if err != nil {
		return err
	}
	s.background(ctx, courier.Run)
	return nil
}

// spec reads the files of a webhook.
func (w WebhookConfig) spec() (webhook.Spec, error) {
	target, err := w.Target(w.URL)
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
	if w.URLFile != "" {
		if s.URL, err = readSecret("url_file", w.URLFile); err != nil {
			return s, err
		}
	}
	s.Secret, err = readSecret("secret_file", w.SecretFile)
	return s, err
}

// sealLedger starts the tasks that sign the ledger's checkpoints and deliver them to witnesses and anchors. Before the first
// checkpoint is signed, it requires the ledger to continue the last checkpoint in each anchor file, which may be from an
// earlier run.
func (s *service) sealLedger(ctx context.Context) error {
	carrier, err := s.openCarrier()
	if err != nil {
		return err
	}
	keys, err := s.logKey.Keys(ctx)
	if err != nil {
		return fmt.Errorf("reading the log's keys: %w", err)
	}
	for _, a := range s.cfg.Anchors {
		if a.File == "" {
			continue
		}
		last, err := witness.File(a.File).Last(keys...)
		if err == nil {
			err = s.book.Expect(ctx, last)
		}
		if err != nil {
			return fmt.Errorf("anchors.%s: comparing the ledger with %s: %w", a.Name, a.File, err)
		}
	}
	s.background(ctx, func(ctx context.Context) error { return s.book.Seal(ctx, s.logKey) })
	s.background(ctx, carrier.Run)
	return nil
}

func (s *service) openCarrier() (*witness.Carrier, error) {
	cfg := witness.Config{
		Log: s.book, Logger: s.Log, OnCosigned: s.gauges.Cosigned,
		OnFailure: func(name string, why witness.Why) { s.gauges.NotCosigned(name, string(why)) },
	}
	for _, w := range s.cfg.Witnesses {
		target, err := w.Target(w.URL)
		if err != nil {
			return nil, fmt.Errorf("witnesses.%s: %w", w.Name, err)
		}
		cfg.Witnesses = append(cfg.Witnesses, witness.Spec{Name: w.Name, Key: w.Key, Target: target})
	}
	for _, a := range s.cfg.Anchors {
		var place witness.Place
		var err error
		switch {
		case a.File != "":
			place = witness.File(a.File)
		case a.Git != "":
			place, err = witness.NewGit(a.Git)
		default:
			var target safehttp.Target
			if target, err = a.Target(a.URL); err == nil {
				place, err = witness.NewURL(target)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("anchors.%s: %w", a.Name, err)
		}
		cfg.Anchors = append(cfg.Anchors, witness.Anchor{Name: a.Name, Place: place, Every: a.Every})
	}
	return witness.New(cfg)
}

// Target reads the CA file and returns the target for a URL.
func (r ReachConfig) Target(url string) (safehttp.Target, error) {
	t := safehttp.Target{URL: secret.New(url)}
	for _, cidr := range r.AllowPrivateCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return t, fmt.Errorf("allow_private_cidrs: %w", err)
		}
		t.AllowPrivate = append(t.AllowPrivate, prefix.Masked())
	}
	if r.AllowHTTPLoopback {
		t.Plaintext = safehttp.PlaintextLoopback
	}
	if r.CAFile == "" {
		return t, nil
	}
	roots, err := safehttp.ReadRoots(r.CAFile)
	if err != nil {
		return t, fmt.Errorf("ca_file: %w", err)
	}
	t.Roots = roots
	return t, nil
}
