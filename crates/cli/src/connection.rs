//! How commands reach a switch's controller.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use fanin_control::client::{ClientConfig, ControlClient, TlsTrust};
use fanin_wire::generated::CONTROL_PORT_DEFAULT;

/// Flags that every command talking to a switch has.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// The switch's controller; the port may be left out.
    #[arg(long, env = "FANIN_SWITCH", value_name = "HOST[:PORT]")]
    pub switch: Option<String>,
    /// Token that the switch asks for.
    #[arg(long, env = "FANIN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// PEM file with the authority that signed the switch's certificate; turns TLS on.
    #[arg(long, env = "FANIN_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
}

impl Connection {
    /// The controller as `host:port`.
    pub fn address(&self) -> anyhow::Result<String> {
        let given = self.switch.as_deref();
        let given = given.context("no switch given: use --switch HOST[:PORT] or set FANIN_SWITCH")?;
        Ok(with_port(given))
    }

    /// Connects, or says what is wrong with the address.
    pub fn connect(&self) -> anyhow::Result<ControlClient> {
        Ok(ControlClient::connect(&self.config()?)?)
    }

    /// What these flags say.
    pub fn config(&self) -> anyhow::Result<ClientConfig> {
        let mut config = ClientConfig::new(self.address()?);
        config.token = self.token.clone();
        config.connect_timeout = Duration::from_secs(5);
        if let Some(file) = &self.tls_ca {
            let ca_pem = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the TLS authority {}", file.display()))?;
            config.tls = Some(TlsTrust { ca_pem, server_name: None });
        }
        Ok(config)
    }
}

fn with_port(given: &str) -> String {
    let has_port = match given.rsplit_once(':') {
        None => false,
        // An IPv6 address in brackets, or a name, with a port.
        Some((host, port)) => port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')),
    };
    if has_port { given.into() } else { format!("{given}:{CONTROL_PORT_DEFAULT}") }
}

#[cfg(test)]
mod tests {
    use super::with_port;

    #[test]
    fn a_missing_port_is_the_default_one() {
        assert_eq!(with_port("10.0.0.1"), "10.0.0.1:50099");
        assert_eq!(with_port("10.0.0.1:7"), "10.0.0.1:7");
        assert_eq!(with_port("[::1]"), "[::1]:50099");
        assert_eq!(with_port("[::1]:7"), "[::1]:7");
    }
}
