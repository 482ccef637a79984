"""Makes the deb and rpm packages and what is only in them: man pages, shell completion, SBOM, licences."""
