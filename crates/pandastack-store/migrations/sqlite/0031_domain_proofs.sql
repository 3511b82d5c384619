-- Custom domains need a proof of ownership. Those from before keep working.
ALTER TABLE app_domains ADD COLUMN verified_at_us INTEGER;
UPDATE app_domains SET verified_at_us = created_at_us;
