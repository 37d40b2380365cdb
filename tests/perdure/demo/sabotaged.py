"""The demo agent, made unsafe on purpose: its booking is declared to bear a second run."""

from dataclasses import replace

from perdure.agent import Agent, Agents
from perdure.demo.agent import agent

tools = [replace(tool, retry_safe=True) for tool in agent.tools.values()]
agents = Agents([Agent(agent.name, model=agent.model, instructions=agent.instructions, tools=tools)])
